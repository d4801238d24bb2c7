//! What must hold after the restart; the actors' memory is brought up to what was found.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use keyway_integration_tests::S3;
use keyway_integration_tests::wire::{Request, elements};

use super::BUCKET;
use super::actor::{Actor, Upload};

pub(crate) fn verify(s3: &mut S3, actors: &mut [Actor]) -> Result<()> {
    let mut present = BTreeSet::new();
    for actor in actors.iter_mut() {
        objects(s3, actor, &mut present)?;
    }
    let listed: BTreeSet<String> = s3.keys(BUCKET).context("listing")?.into_iter().collect();
    ensure!(listed == present, "the listing differs: {:?}", listed.symmetric_difference(&present));
    let uploads = s3.uploads(BUCKET).context("listing uploads")?;
    for actor in actors {
        actor_uploads(s3, actor, &uploads)?;
    }
    Ok(())
}

/// Every key holds its last durable state, or the one that was acknowledged from memory since, or
/// the one that was under way, whole.
fn objects(s3: &mut S3, actor: &mut Actor, present: &mut BTreeSet<String>) -> Result<()> {
    for (key, entry) in &mut actor.entries {
        let response = s3.get(BUCKET, key).with_context(|| format!("reading {key}"))?;
        let in_memory = std::mem::take(&mut entry.in_memory).into_iter().map(Some);
        let known = [Some(entry.acknowledged), entry.under_way.take()].into_iter().flatten();
        let candidates: Vec<_> = known.chain(in_memory).collect();
        let fits = |state: &super::actor::Version| response.body == state.bytes();
        let found = match response.status {
            404 => candidates.iter().copied().find(Option::is_none),
            200 => candidates.iter().copied().find(|state| state.as_ref().is_some_and(fits)),
            status => bail!("{key}: status {status}: {}", response.text()),
        };
        let Some(found) = found else {
            bail!(
                "{key}: status {}, {} bytes, fits none of {candidates:?}",
                response.status,
                response.body.len(),
            );
        };
        if found.is_some() {
            present.insert(key.clone());
        }
        entry.acknowledged = found;
    }
    Ok(())
}

/// Acknowledged uploads are there with their acknowledged parts; ended ones are gone, unless the
/// end was acknowledged from memory and undone.
fn actor_uploads(s3: &mut S3, actor: &mut Actor, listed: &[(String, String)]) -> Result<()> {
    let is_listed = |upload: &Upload| listed.iter().any(|(_, id)| *id == upload.id);
    if let Some(lost) = actor.uploads.iter().find(|upload| !upload.ending && !is_listed(upload)) {
        bail!("an acknowledged upload is gone: {lost:?}");
    }
    actor.uploads.retain(is_listed);
    for upload in &mut actor.uploads {
        upload.ending = false;
        let request = Request::object("GET", BUCKET, &upload.key).query("uploadId", &upload.id);
        let response = s3.send(request)?;
        ensure!(response.status == 200, "{upload:?}: {}", response.text());
        let xml = response.text();
        let stored: Vec<_> =
            elements(&xml, "PartNumber").into_iter().zip(elements(&xml, "ETag")).collect();
        if std::mem::take(&mut upload.in_memory) {
            upload.parts.clear();
        }
        for (number, etag) in &upload.parts {
            let part = (number.to_string(), etag.clone());
            ensure!(stored.contains(&part), "a part of {upload:?} is gone; there are {stored:?}");
        }
    }
    let known: BTreeSet<&str> = actor.uploads.iter().map(|upload| upload.id.as_str()).collect();
    for (key, id) in listed {
        if key.starts_with(&actor.name) && !known.contains(id.as_str()) {
            let may_be = actor.creating_upload || actor.ended_in_memory.contains(id);
            ensure!(may_be, "an upload of {key} that ended is back: {id}");
            let request = Request::object("DELETE", BUCKET, key).query("uploadId", id);
            ensure!(s3.send(request)?.status == 204, "an unknown upload cannot be aborted");
        }
    }
    actor.creating_upload = false;
    actor.ended_in_memory.clear();
    Ok(())
}
