//! The operations that ask for versions.

use keyway_integration_tests::wire::{Request, Response, element, elements};

use super::drive::{Drive, Outcome, broken, ensure, expect, fail, same};
use super::reference::Object;

impl Drive<'_> {
    pub(crate) fn keep(&mut self, enabled: bool) -> Outcome {
        let status = if enabled { "Enabled" } else { "Suspended" };
        let body =
            format!("<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>");
        let request = Request::new("PUT", format!("/{}", self.bucket)).query("versioning", "");
        expect(&self.s3.send(request.body(body)).map_err(broken)?, 200, "")?;
        self.model.keeps = Some(enabled);
        Ok(())
    }

    /// What was written is current, under the name that the server gave it.
    pub(crate) fn made(&mut self, key: &str, response: &Response, object: Object) -> Outcome {
        self.named(response)?;
        let name = response.header("x-amz-version-id").unwrap_or("null");
        self.model.add(key, name, Some(object));
        Ok(())
    }

    /// Whether a new version is named as the bucket's state has it.
    pub(crate) fn named(&self, response: &Response) -> Outcome {
        let name = response.header("x-amz-version-id");
        let right = match self.model.keeps {
            None => name.is_none(),
            Some(false) => name == Some("null"),
            Some(true) => name.is_some_and(|name| name.len() == 32),
        };
        ensure(right, || format!("named {name:?} while {:?}", self.model.keeps))
    }

    pub(crate) fn version(&mut self, key: &str, nth: usize) -> Outcome {
        let versions = self.model.versions.get(key);
        let Some(version) = versions.and_then(|versions| versions.get(nth)) else { return Ok(()) };
        let request =
            Request::object("GET", self.bucket, key).query("versionId", version.name.clone());
        let response = self.s3.send(request).map_err(broken)?;
        let Some(object) = &version.object else {
            return expect(&response, 405, "MethodNotAllowed");
        };
        expect(&response, 200, "")?;
        ensure(response.body == object.body, || format!("{key}, {}", version.name))?;
        same("etag", response.header("etag"), Some(&object.etag))
    }

    pub(crate) fn delete_version(&mut self, key: &str, nth: usize) -> Outcome {
        let versions = self.model.versions.get(key);
        let Some(version) = versions.and_then(|versions| versions.get(nth)) else { return Ok(()) };
        let name = version.name.clone();
        let request = Request::object("DELETE", self.bucket, key).query("versionId", name.clone());
        let response = self.s3.send(request).map_err(broken)?;
        expect(&response, 204, "")?;
        let marker = self.model.remove(key, &name);
        same("a marker", response.header("x-amz-delete-marker"), marker.then_some("true"))
    }

    pub(crate) fn list_versions(&mut self, prefix: &str, page: usize) -> Outcome {
        let mut expected: Vec<(String, String, String)> = Vec::new();
        for (key, versions) in &self.model.versions {
            if key.starts_with(prefix) {
                for (at, version) in versions.iter().enumerate() {
                    expected.push((key.clone(), version.name.clone(), (at == 0).to_string()));
                }
            }
        }
        let mut found = Vec::new();
        let mut markers: Option<(String, Option<String>)> = None;
        loop {
            let mut request = Request::new("GET", format!("/{}", self.bucket))
                .query("versions", "")
                .query("prefix", prefix)
                .query("max-keys", page.to_string());
            if let Some((key, version)) = &markers {
                request = request.query("key-marker", key.clone());
                if let Some(version) = version {
                    request = request.query("version-id-marker", version.clone());
                }
            }
            let response = self.s3.send(request).map_err(broken)?;
            expect(&response, 200, "")?;
            let xml = response.text();
            // Each entry has its key first; what precedes the entries names no version.
            let entries: Vec<(String, String, String)> = elements(&xml, "Key")
                .into_iter()
                .zip(elements(&xml, "VersionId"))
                .zip(elements(&xml, "IsLatest"))
                .map(|((key, version), latest)| (key, version, latest))
                .collect();
            let left = expected.len().saturating_sub(found.len());
            same("versions of a page", Some(&entries.len()), Some(&left.min(page)))?;
            found.extend(entries);
            if element(&xml, "IsTruncated") != Some("true") {
                break;
            }
            let key = elements(&xml, "NextKeyMarker").pop().ok_or_else(|| fail("no next key"))?;
            markers = Some((key, elements(&xml, "NextVersionIdMarker").pop()));
        }
        // Delete markers and versions come as two lists.
        found.sort();
        expected.sort();
        ensure(found == expected, || format!("versions {found:?}\nexpected {expected:?}"))
    }
}
