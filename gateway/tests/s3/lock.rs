//! Versions that cannot be deleted.

use crate::fixture::{Call, Server};

/// The clock starts at 2026-01-01.
const LATER: &str = "2026-01-03T00:00:00Z";
const ENABLED: &str = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";

impl Server {
    async fn with_locks() -> Self {
        let server = Self::start().await;
        let put = server.put("/bucket").header("x-amz-bucket-object-lock-enabled", "true");
        put.send().await.expect(200);
        server
    }

    fn put_locked(&self, mode: &str) -> Call<'_> {
        self.put("/bucket/k")
            .header("x-amz-object-lock-mode", mode)
            .header("x-amz-object-lock-retain-until-date", LATER)
    }
}

fn retention(mode: &str, until: &str) -> String {
    format!("<Retention><Mode>{mode}</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>")
}

#[tokio::test]
async fn retention_holds_until_its_time() {
    let server = Server::with_locks().await;
    let state = server.get("/bucket?versioning").send().await.expect(200);
    assert_eq!(state.tag("Status"), "Enabled");
    let suspended = server.put("/bucket?versioning").body(ENABLED.replace("Enabled", "Suspended"));
    suspended.send().await.refused(409, "InvalidBucketState");
    for mode in ["GOVERNANCE", "COMPLIANCE"] {
        let put = server.put_locked(mode).body("abc").send().await.expect(200);
        let version = put.header("x-amz-version-id").expect("a version").to_owned();
        let head = server.head("/bucket/k").send().await.expect(200);
        assert_eq!(head.header("x-amz-object-lock-mode"), Some(mode));
        let until = head.header("x-amz-object-lock-retain-until-date").expect("a date");
        assert!(until.starts_with("2026-01-03T00:00:00"), "{until}");
        let path = format!("/bucket/k?versionId={version}");
        let delete = || server.delete(&path);
        delete().send().await.refused(403, "AccessDenied");
        let listed = format!(
            "<Delete><Object><Key>k</Key><VersionId>{version}</VersionId></Object></Delete>"
        );
        let many = server.delete_objects(listed).await.expect(200);
        assert_eq!(many.tag("Code"), "AccessDenied");
        // What hides it does not delete it.
        server.delete("/bucket/k").send().await.expect(204);
        server.put("/bucket/k").body("newer").send().await.expect(200);
        let bypassed = delete().header("x-amz-bypass-governance-retention", "true").send().await;
        match mode {
            "GOVERNANCE" => drop(bypassed.expect(204)),
            _ => drop(bypassed.refused(403, "AccessDenied")),
        }
    }
    server.clock.advance_s(2 * 86_400);
    let listed = server.get("/bucket?versions").send().await.expect(200);
    for version in listed.tags("VersionId") {
        server.delete(&format!("/bucket/k?versionId={version}")).send().await.expect(204);
    }
    server.delete("/bucket").send().await.expect(204);
}

#[tokio::test]
async fn retention_is_changed_as_its_mode_lets() {
    let server = Server::with_locks().await;
    server.put("/bucket/k").body("abc").send().await.expect(200);
    let told = || server.get("/bucket/k?retention");
    told().send().await.refused(404, "NoSuchObjectLockConfiguration");
    let put =
        |mode: &str, until: &str| server.put("/bucket/k?retention").body(retention(mode, until));
    put("GOVERNANCE", LATER).send().await.expect(200);
    assert_eq!(told().send().await.expect(200).tag("Mode"), "GOVERNANCE");
    let sooner = "2026-01-02T00:00:00Z";
    put("GOVERNANCE", sooner).send().await.refused(403, "AccessDenied");
    let bypass = put("GOVERNANCE", sooner).header("x-amz-bypass-governance-retention", "true");
    bypass.send().await.expect(200);
    put("COMPLIANCE", LATER).send().await.expect(200);
    put("GOVERNANCE", LATER).send().await.refused(403, "AccessDenied");
    put("COMPLIANCE", "2025-01-01T00:00:00Z").send().await.refused(400, "InvalidArgument");
    put("FOREVER", LATER).send().await.refused(400, "MalformedXML");
    let half = "<Retention><Mode>GOVERNANCE</Mode></Retention>";
    server.put("/bucket/k?retention").body(half).send().await.refused(400, "MalformedXML");
}

#[tokio::test]
async fn legal_holds_hold_until_taken_back() {
    let server = Server::with_locks().await;
    let put = server.put("/bucket/k").header("x-amz-object-lock-legal-hold", "ON").send().await;
    let version = put.expect(200).header("x-amz-version-id").expect("a version").to_owned();
    let head = server.head("/bucket/k").send().await.expect(200);
    assert_eq!(head.header("x-amz-object-lock-legal-hold"), Some("ON"));
    let told = server.get("/bucket/k?legal-hold").send().await.expect(200);
    assert_eq!(told.tag("Status"), "ON");
    let path = format!("/bucket/k?versionId={version}");
    let delete = || server.delete(&path).header("x-amz-bypass-governance-retention", "true");
    delete().send().await.refused(403, "AccessDenied");
    let hold = |status: &str| {
        let body = format!("<LegalHold><Status>{status}</Status></LegalHold>");
        server.put("/bucket/k?legal-hold").body(body)
    };
    hold("MAYBE").send().await.refused(400, "MalformedXML");
    hold("OFF").send().await.expect(200);
    delete().send().await.expect(204);
}

#[tokio::test]
async fn buckets_lock_by_default() {
    let server = Server::with_bucket().await;
    let config = || server.get("/bucket?object-lock");
    config().send().await.refused(404, "ObjectLockConfigurationNotFoundError");
    let put = |rule: &str| {
        let body = format!(
            "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled>{rule}\
             </ObjectLockConfiguration>"
        );
        server.put("/bucket?object-lock").body(body)
    };
    let days = |mode: &str, days: i32| {
        let retention = format!("<Mode>{mode}</Mode><Days>{days}</Days>");
        format!("<Rule><DefaultRetention>{retention}</DefaultRetention></Rule>")
    };
    put("").send().await.refused(409, "InvalidBucketState");
    server.put_locked("GOVERNANCE").send().await.refused(400, "InvalidRequest");
    server.put("/bucket/k").send().await.expect(200);
    server.get("/bucket/k?retention").send().await.refused(400, "InvalidRequest");
    server.put("/bucket?versioning").body(ENABLED).send().await.expect(200);
    put(&days("COMPLIANCE", 0)).send().await.refused(400, "InvalidRetentionPeriod");
    put(&days("SOMETIMES", 1)).send().await.refused(400, "MalformedXML");
    put(&days("COMPLIANCE", 2)).send().await.expect(200);
    let told = config().send().await.expect(200);
    assert_eq!((&*told.tag("Mode"), &*told.tag("Days")), ("COMPLIANCE", "2"));
    server.put("/bucket/k").body("abc").send().await.expect(200);
    let copy = server.put("/bucket/copy").header("x-amz-copy-source", "bucket/k").send().await;
    copy.expect(200);
    for path in ["/bucket/k", "/bucket/copy"] {
        let head = server.head(path).send().await.expect(200);
        assert_eq!(head.header("x-amz-object-lock-mode"), Some("COMPLIANCE"), "{path}");
    }
    let half = server.put("/bucket/k").header("x-amz-object-lock-mode", "GOVERNANCE");
    half.send().await.refused(400, "InvalidArgument");
}
