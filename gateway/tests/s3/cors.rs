//! Pages of other origins, and configurations that say that there is nothing.

use http::Method;

use crate::fixture::{Call, Server};

const RULES: &str = "<CORSConfiguration>\
    <CORSRule><ID>one</ID><AllowedOrigin>https://*.example</AllowedOrigin>\
    <AllowedMethod>GET</AllowedMethod><AllowedMethod>PUT</AllowedMethod>\
    <AllowedHeader>x-amz-*</AllowedHeader><AllowedHeader>Authorization</AllowedHeader>\
    <ExposeHeader>ETag</ExposeHeader><MaxAgeSeconds>60</MaxAgeSeconds></CORSRule>\
    <CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>HEAD</AllowedMethod></CORSRule>\
    </CORSConfiguration>";

fn preflight<'s>(server: &'s Server, path: &str, origin: &str, method: &str) -> Call<'s> {
    server
        .call(Method::OPTIONS, path)
        .anonymous()
        .header("origin", origin)
        .header("access-control-request-method", method)
}

#[tokio::test]
async fn preflights_are_decided_by_the_buckets_rules() {
    let server = Server::with_bucket().await;
    let ask = |origin: &str, method: &str| preflight(&server, "/bucket/k", origin, method);
    ask("https://a.example", "GET").send().await.refused(403, "AccessForbidden");
    server.put("/bucket?cors").body(RULES).send().await.expect(200);
    let told = ask("https://a.example", "PUT")
        .header("access-control-request-headers", "X-Amz-Date, authorization");
    let told = told.send().await.expect(200);
    for (name, value) in [
        ("access-control-allow-origin", "https://a.example"),
        ("access-control-allow-methods", "GET, PUT"),
        ("access-control-allow-headers", "x-amz-date, authorization"),
        ("access-control-expose-headers", "ETag"),
        ("access-control-max-age", "60"),
        ("access-control-allow-credentials", "true"),
    ] {
        assert_eq!(told.header(name), Some(value), "{name}");
    }
    assert!(told.header("vary").is_some_and(|vary| vary.contains("Origin")));
    let any = ask("http://elsewhere", "HEAD").send().await.expect(200);
    assert_eq!(any.header("access-control-allow-origin"), Some("*"));
    assert_eq!(any.header("access-control-allow-credentials"), None);
    ask("http://elsewhere", "GET").send().await.refused(403, "AccessForbidden");
    ask("https://a.example", "DELETE").send().await.refused(403, "AccessForbidden");
    let header =
        ask("https://a.example", "PUT").header("access-control-request-headers", "x-other");
    header.send().await.refused(403, "AccessForbidden");
    ask("https://a.example", "TRACE").send().await.refused(400, "BadRequest");
    server.call(Method::OPTIONS, "/bucket/k").anonymous().send().await.refused(400, "BadRequest");
    let nowhere = preflight(&server, "/nowhere/k", "https://a.example", "GET").send().await;
    nowhere.refused(403, "AccessForbidden");
}

#[tokio::test]
async fn answers_tell_pages_whether_they_may_look() {
    let server = Server::with_bucket().await;
    server.put("/bucket?cors").body(RULES).send().await.expect(200);
    server.put("/bucket/k").body("abc").send().await.expect(200);
    let get = |origin: &str| server.get("/bucket/k").header("origin", origin);
    let told = get("https://a.example").send().await.expect(200);
    assert_eq!(told.header("access-control-allow-origin"), Some("https://a.example"));
    assert_eq!(told.header("access-control-expose-headers"), Some("ETag"));
    let other = get("http://elsewhere").send().await.expect(200);
    assert_eq!(other.header("access-control-allow-origin"), None);
    let missing = server.get("/bucket/nope").header("origin", "https://a.example").send().await;
    let missing = missing.refused(404, "NoSuchKey");
    assert_eq!(missing.header("access-control-allow-origin"), Some("https://a.example"));
}

#[tokio::test]
async fn rules_are_kept_as_given_and_checked() {
    let server = Server::with_bucket().await;
    let rules = || server.get("/bucket?cors");
    rules().send().await.refused(404, "NoSuchCORSConfiguration");
    server.put("/bucket?cors").body(RULES).send().await.expect(200);
    let found = rules().send().await.expect(200);
    assert_eq!(found.tags("AllowedOrigin"), ["https://*.example", "*"]);
    assert_eq!(found.tags("AllowedMethod"), ["GET", "PUT", "HEAD"]);
    assert_eq!((&*found.tag("ID"), &*found.tag("MaxAgeSeconds")), ("one", "60"));
    for (origin, method, rest) in [
        ("*", "PATCH", ""),
        ("http://*.*", "GET", ""),
        ("*", "GET", "<AllowedHeader>*-*</AllowedHeader>"),
        ("*", "GET", "<ExposeHeader>*</ExposeHeader>"),
    ] {
        let body = format!(
            "<CORSConfiguration><CORSRule><AllowedOrigin>{origin}</AllowedOrigin>\
             <AllowedMethod>{method}</AllowedMethod>{rest}</CORSRule></CORSConfiguration>"
        );
        server.put("/bucket?cors").body(body).send().await.refused(400, "InvalidRequest");
    }
    let none = server.put("/bucket?cors").body("<CORSConfiguration/>").send().await;
    none.refused(400, "MalformedXML");
    server.delete("/bucket?cors").send().await.expect(204);
    rules().send().await.refused(404, "NoSuchCORSConfiguration");
}

/// What a server answers that has none of these.
#[tokio::test]
async fn configurations_that_are_not_there() {
    let server = Server::with_bucket().await;
    for (query, code) in [
        ("encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("replication", "ReplicationConfigurationNotFoundError"),
        ("website", "NoSuchWebsiteConfiguration"),
    ] {
        server.get(&format!("/bucket?{query}")).send().await.refused(404, code);
        server.delete(&format!("/bucket?{query}")).send().await.expect(204);
        server.get(&format!("/nowhere?{query}")).send().await.refused(404, "NoSuchBucket");
    }
    for query in ["accelerate", "logging", "notification"] {
        server.get(&format!("/bucket?{query}")).send().await.expect(200);
    }
    let payment = server.get("/bucket?requestPayment").send().await.expect(200);
    assert_eq!(payment.tag("Payer"), "BucketOwner");
    for (query, idle, busy) in [
        (
            "requestPayment",
            "<RequestPaymentConfiguration><Payer>BucketOwner</Payer></RequestPaymentConfiguration>",
            "<RequestPaymentConfiguration><Payer>Requester</Payer></RequestPaymentConfiguration>",
        ),
        (
            "accelerate",
            "<AccelerateConfiguration><Status>Suspended</Status></AccelerateConfiguration>",
            "<AccelerateConfiguration><Status>Enabled</Status></AccelerateConfiguration>",
        ),
        (
            "logging",
            "<BucketLoggingStatus/>",
            "<BucketLoggingStatus><LoggingEnabled><TargetBucket>b</TargetBucket>\
             <TargetPrefix>p</TargetPrefix></LoggingEnabled></BucketLoggingStatus>",
        ),
    ] {
        let path = format!("/bucket?{query}");
        server.put(&path).body(idle).send().await.expect(200);
        server.put(&path).body(busy).send().await.refused(501, "NotImplemented");
    }
}
