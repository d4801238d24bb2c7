//! Lifecycle rules, as clients give them and as maintenance acts by them.

use std::sync::Arc;

use keyway_gateway::maintenance::{LifecycleReport, Maintenance, MaintenanceConfig};
use keyway_gateway::s3::Clock;

use crate::fixture::Server;

/// What a day is in these tests.
const DAY_S: u64 = 10;
const ENABLED: &str = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
const EXPIRE: &str = "<Expiration><Days>1</Days></Expiration>";
const NONCURRENT: &str = "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
    </NoncurrentVersionExpiration>";
const ABORT: &str = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>1</DaysAfterInitiation>\
    </AbortIncompleteMultipartUpload>";
const TAG: &str = "<Tag><Key>t</Key><Value>1</Value></Tag>";

impl Server {
    async fn rules(&self, rules: &str) {
        let body = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
        self.put("/bucket?lifecycle").body(body).send().await.expect(200);
    }

    /// Lets days pass, and acts by the rules.
    async fn live(&self, days: u64) -> LifecycleReport {
        self.clock.advance_s(days * DAY_S);
        let config =
            MaintenanceConfig { lifecycle_day_ms: DAY_S * 1000, ..MaintenanceConfig::default() };
        let catalog = Arc::clone(&self.catalog);
        let maintenance = Maintenance::new(catalog, self.nodes.clone(), config);
        maintenance.live(self.clock.now()).await.expect("the catalog stands")
    }

    async fn keys(&self) -> Vec<String> {
        self.get("/bucket?list-type=2").send().await.expect(200).tags("Key")
    }
}

fn rule(id: &str, filter: &str, action: &str) -> String {
    format!("<Rule><ID>{id}</ID><Status>Enabled</Status><Filter>{filter}</Filter>{action}</Rule>")
}

#[tokio::test]
async fn objects_expire_by_prefix_tag_and_size() {
    let server = Server::with_bucket().await;
    let and = format!(
        "<And><Prefix>both/</Prefix>{TAG}<ObjectSizeGreaterThan>2</ObjectSizeGreaterThan></And>"
    );
    let rules = [
        rule("prefix", "<Prefix>old/</Prefix>", EXPIRE),
        rule("and", &and, EXPIRE),
        rule("tag", "<Tag><Key>u</Key><Value>2</Value></Tag>", EXPIRE),
        rule("size", "<ObjectSizeLessThan>2</ObjectSizeLessThan>", EXPIRE),
        rule("off", "<Prefix>keep</Prefix>", EXPIRE).replace("Enabled", "Disabled"),
    ];
    server.rules(&rules.concat()).await;
    for (key, tags, body) in [
        ("old/a", "", "xxxx"),
        ("tagged", "t=1&u=2", "xxxx"),
        ("keep", "t=1", "xxxx"),
        ("both/a", "t=1", "xxxx"),
        ("both/b", "u=1", "xxxx"),
        ("both/c", "t=1", "xx"),
        ("small", "", "x"),
    ] {
        let put = server.put(&format!("/bucket/{key}")).header("x-amz-tagging", tags);
        put.body(body).send().await.expect(200);
    }
    assert_eq!(server.live(0).await, LifecycleReport::default());
    assert_eq!(server.live(2).await.expired, 4);
    assert_eq!(server.keys().await, ["both/b", "both/c", "keep"]);
    assert_eq!(server.live(2).await, LifecycleReport::default());
}

#[tokio::test]
async fn versions_expire_behind_the_current_one() {
    let server = Server::with_bucket().await;
    server.put("/bucket?versioning").body(ENABLED).send().await.expect(200);
    let keep = NONCURRENT.replace(
        "</NoncurrentVersion",
        "<NewerNoncurrentVersions>1</NewerNoncurrentVersions></NoncurrentVersion",
    );
    server.rules(&rule("n", "", &keep)).await;
    for body in ["1", "2", "3", "4"] {
        server.put("/bucket/k").body(body).send().await.expect(200);
    }
    assert_eq!(server.live(0).await, LifecycleReport::default());
    // One of the three stays by the rule.
    assert_eq!(server.live(2).await.versions_removed, 2);
    assert_eq!(server.get("/bucket/k").send().await.expect(200).text(), "4");

    server.rules(&rule("e", "", &format!("{EXPIRE}{NONCURRENT}"))).await;
    let first = server.live(0).await;
    assert_eq!((first.expired, first.versions_removed), (1, 1));
    server.get("/bucket/k").send().await.refused(404, "NoSuchKey");
    // Then what the marker hides, and at last the marker, which hides nothing any more.
    assert_eq!(server.live(2).await.versions_removed, 1);
    assert_eq!(server.live(0).await.versions_removed, 1);
    server.delete("/bucket").send().await.expect(204);
}

#[tokio::test]
async fn markers_that_hide_nothing_and_uploads_that_end_nowhere() {
    let server = Server::with_bucket().await;
    server.put("/bucket?versioning").body(ENABLED).send().await.expect(200);
    let marker = "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker>\
        </Expiration>";
    let rules = [rule("m", "", marker), rule("a", "<Prefix>up/</Prefix>", ABORT)];
    server.rules(&rules.concat()).await;
    server.delete("/bucket/lone").send().await.expect(204);
    server.put("/bucket/hidden").body("x").send().await.expect(200);
    server.delete("/bucket/hidden").send().await.expect(204);
    server.post("/bucket/up/a?uploads").send().await.expect(200);
    server.post("/bucket/other?uploads").send().await.expect(200);
    let report = server.live(0).await;
    assert_eq!((report.versions_removed, report.uploads_aborted), (1, 0));
    assert_eq!(server.live(2).await.uploads_aborted, 1);
    let left = server.get("/bucket?uploads").send().await.expect(200);
    assert_eq!(left.tags("Key"), ["other"]);
}

#[tokio::test]
async fn locked_versions_outlive_rules() {
    let server = Server::start().await;
    let put = server.put("/bucket").header("x-amz-bucket-object-lock-enabled", "true");
    put.send().await.expect(200);
    server.rules(&rule("n", "", NONCURRENT)).await;
    let held = server.put("/bucket/k").header("x-amz-object-lock-legal-hold", "ON");
    held.body("held").send().await.expect(200);
    server.put("/bucket/k").body("newer").send().await.expect(200);
    assert_eq!(server.live(3).await, LifecycleReport::default());
    assert_eq!(server.get("/bucket?versions").send().await.expect(200).tags("VersionId").len(), 2);
}

#[tokio::test]
async fn rules_are_kept_as_given_and_checked() {
    let server = Server::with_bucket().await;
    let get = || server.get("/bucket?lifecycle");
    get().send().await.refused(404, "NoSuchLifecycleConfiguration");
    let put = |rules: String| {
        let body = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
        server.put("/bucket?lifecycle").body(body)
    };
    let dated = "<Expiration><Date>2030-01-01T00:00:00Z</Date></Expiration>";
    let and = format!("<And><Prefix>p</Prefix>{TAG}</And>");
    let old = format!("<Rule><Prefix>x</Prefix><Status>Enabled</Status>{EXPIRE}</Rule>");
    put([rule("a", &and, EXPIRE), rule("b", TAG, dated), old].concat()).send().await.expect(200);
    let found = get().send().await.expect(200);
    assert_eq!(found.tags("Days"), ["1", "1"]);
    assert!(found.text().contains("<And>") && found.text().contains("<Prefix>p</Prefix>"));
    assert!(found.tag("Date").starts_with("2030-01-01T00:00:00"));
    let noon = dated.replace("T00", "T12");
    let both = dated.replace("<Date>", "<Days>1</Days><Date>");
    let move_on = "<Transition><Days>1</Days><StorageClass>GLACIER</StorageClass></Transition>";
    let two = format!("<Prefix>p</Prefix>{TAG}");
    for (rules, status, code) in [
        (String::new(), 400, "MalformedXML"),
        (rule("a", "", ""), 400, "InvalidRequest"),
        (rule("a", "", &EXPIRE.replace('1', "0")), 400, "InvalidArgument"),
        (rule("a", "", &noon), 400, "InvalidArgument"),
        (rule("a", "", &both), 400, "MalformedXML"),
        (rule("a", "", move_on), 501, "NotImplemented"),
        (rule("a", TAG, ABORT), 400, "InvalidRequest"),
        (rule("a", &two, EXPIRE), 400, "MalformedXML"),
        (rule("a", "", EXPIRE).repeat(2), 400, "InvalidArgument"),
        (rule(&"i".repeat(256), "", EXPIRE), 400, "InvalidArgument"),
        (rule("a", "", EXPIRE).replace("Enabled", "Perhaps"), 400, "MalformedXML"),
        (format!("<Rule><Status>Enabled</Status>{EXPIRE}</Rule>"), 400, "MalformedXML"),
    ] {
        let reply = put(rules.clone()).send().await;
        assert_eq!((reply.status.as_u16(), &*reply.tag("Code")), (status, code), "{rules}");
    }
    server.delete("/bucket?lifecycle").send().await.expect(204);
    get().send().await.refused(404, "NoSuchLifecycleConfiguration");
}
