//! Forms of somebody who would upload more, or elsewhere, than was signed.

use anyhow::{Result, ensure};
use keyway_integration_tests::form::{Form, part};
use keyway_integration_tests::seed::payload;
use keyway_integration_tests::sigv4::{Credentials, Signer};
use keyway_integration_tests::wire::{Connection, Request};
use serde_json::json;

use crate::forms::{post, scene};
use crate::world::{World, denied, expect, refused, statement};

fn said(answer: &keyway_integration_tests::wire::Response, text: &str) -> Result<()> {
    ensure!(answer.text().contains(text), "not {text:?}: {}", answer.text());
    Ok(())
}

#[test]
fn policies_bound_their_forms() -> Result<()> {
    let (world, mut s3) = scene()?;
    let root = world.server.credentials();
    let refused_as = |form: Form, what: &str| -> Result<()> {
        let answer = post(&world, &form)?;
        denied(&answer)?;
        said(&answer, &format!("Invalid according to Policy: {what}"))
    };
    let form = || Form::new("data", "a", "x");

    refused_as(form().uncovered("acl", "private").signed(root), "Extra input fields: acl")?;
    let expired = Form { expires_s: -1, ..form() };
    refused_as(expired.signed(root), "Policy expired.")?;
    let other = form().condition(r#"{"bucket": "other"}"#);
    refused_as(other.signed(root), "Policy Condition failed: [")?;
    let mut elsewhere = form().signed(root);
    elsewhere.tamper("key", "b");
    refused_as(elsewhere, "Policy Condition failed")?;
    let prefix = form().condition(r#"["starts-with", "$key", "up/"]"#);
    refused_as(prefix.signed(root), "Policy Condition failed")?;
    // Nothing that is not the bucket's name in the policy is of the bucket.
    let mut nowhere = form();
    nowhere.conditions.retain(|condition| !condition.contains("bucket"));
    refused_as(nowhere.signed(root), "Extra input fields: bucket")?;
    // A policy of old, though it has not ended.
    let week_ago = Signer::skewed(root, -8 * 86_400);
    refused_as(form().signed_by(&week_ago, None), "Policy expired.")?;
    let tomorrow = Signer::skewed(root, 86_400);
    refused(&post(&world, &form().signed_by(&tomorrow, None))?, 403, "RequestTimeTooSkewed")?;
    expect(&s3.get("data", "a")?, 404)?;
    expect(&s3.get("data", "b")?, 404)
}

#[test]
fn sizes_are_bounded() -> Result<()> {
    let (world, mut s3) = scene()?;
    let root = world.server.credentials();
    let sized = |bytes: usize| {
        let form = Form::new("data", "a", payload(1, bytes));
        let form = form.condition(r#"["content-length-range", 10, 200000]"#);
        post(&world, &form.signed(root))
    };
    // Just beyond, and so far beyond that it shows before the file is read.
    for bytes in [200_001, 264_000, 2_000_000] {
        refused(&sized(bytes)?, 400, "EntityTooLarge")?;
    }
    refused(&sized(9)?, 400, "EntityTooSmall")?;
    refused(&sized(0)?, 400, "EntityTooSmall")?;
    expect(&s3.get("data", "a")?, 404)?;
    for bytes in [10, 200_000] {
        expect(&sized(bytes)?, 204)?;
    }
    Ok(())
}

#[test]
fn signatures_must_be_the_policys() -> Result<()> {
    let (world, mut s3) = scene()?;
    let root = world.server.credentials();
    let form = || Form::new("data", "a", "x");
    let stranger = Credentials { secret_key: "x".repeat(40), ..root.clone() };
    refused(&post(&world, &form().signed(&stranger))?, 403, "SignatureDoesNotMatch")?;
    let unknown = form().signed(&Credentials::random());
    refused(&post(&world, &unknown)?, 403, "InvalidAccessKeyId")?;
    for (field, value) in [
        ("x-amz-signature", "0".repeat(64)),
        ("x-amz-signature", "not hexadecimal".to_owned()),
        // Another policy under the signature.
        (
            "policy",
            "eyJleHBpcmF0aW9uIjoiMjA5OS0wMS0wMVQwMDowMDowMFoiLCJjb25kaXRpb25zIjpbXX0=".into(),
        ),
    ] {
        let mut tampered = form().signed(root);
        tampered.tamper(field, &value);
        refused(&post(&world, &tampered)?, 403, "SignatureDoesNotMatch")?;
    }
    for missing in
        ["policy", "x-amz-signature", "x-amz-credential", "x-amz-date", "x-amz-algorithm"]
    {
        let mut less = form().signed(root);
        less.fields.retain(|(name, _)| name != missing);
        let answer = post(&world, &less)?;
        refused(&answer, 400, "InvalidArgument")?;
        said(&answer, missing)?;
    }
    let sts = Signer { service: "sts".to_owned(), ..Signer::new(root) };
    refused(&post(&world, &form().signed_by(&sts, None))?, 400, "InvalidArgument")?;
    let old = form().uncovered("AWSAccessKeyId", &root.access_key).uncovered("signature", "x");
    refused(&post(&world, &old)?, 400, "InvalidRequest")?;
    let signer = Signer::new(root);
    let whole = form().signed(root);
    let mut no_policy = whole.clone();
    no_policy.fields.retain(|(name, _)| name != "policy" && name != "x-amz-signature");
    let no_policy = no_policy.signed_policy(&signer, "{\"expiration\": 1}");
    refused(&post(&world, &no_policy)?, 400, "InvalidPolicyDocument")?;
    expect(&s3.get("data", "a")?, 404)?;
    expect(&post(&world, &whole)?, 204)
}

/// Goal: a form that could be read in two ways is read in none.
#[test]
fn forms_are_read_in_one_way() -> Result<()> {
    let (world, mut s3) = scene()?;
    let root = world.server.credentials();
    let signed = || Form::new("data", "a", "x").signed(root);

    let twice = signed().uncovered("key", "b");
    refused(&post(&world, &twice)?, 400, "InvalidArgument")?;
    let twice = signed().uncovered("KEY", "b");
    refused(&post(&world, &twice)?, 400, "InvalidArgument")?;

    // What stands behind the file says nothing, though it would be covered.
    let form = Form::new("data", "a", "x").condition(r#"["starts-with", "$x-amz-meta-a", ""]"#);
    let mut behind = form.signed(root);
    behind.behind = (part("key", "b") + &part("x-amz-meta-a", "late") + &part("file", "y")).into();
    expect(&post(&world, &behind)?, 204)?;
    let read = s3.get("data", "a")?;
    ensure!(read.body == b"x" && read.header("x-amz-meta-a").is_none(), "{:?}", read.headers);
    expect(&s3.get("data", "b")?, 404)?;
    // More of it than a form needs.
    let mut padded = signed();
    padded.behind = part("late", &"y".repeat(1_000_000)).into();
    refused(&post(&world, &padded)?, 400, "IncompleteBody")?;

    // Headers of a part are none of the object's.
    let mut smuggling = signed();
    smuggling.file_headers = "Content-Type: text/html\r\nx-amz-meta-a: b\r\n".to_owned();
    expect(&post(&world, &smuggling)?, 204)?;
    let read = s3.get("data", "a")?;
    ensure!(read.header("x-amz-meta-a").is_none(), "{:?}", read.headers);
    ensure!(read.header("content-type") != Some("text/html"), "{:?}", read.headers);
    let mut two = signed();
    two.file_headers = "Content-Disposition: form-data; name=\"key\"\r\n".to_owned();
    refused(&post(&world, &two)?, 400, "MalformedPOSTRequest")?;
    for value in ["text/plain\r\nx-amz-acl: public-read", "a\u{7}"] {
        let split = Form { covered: false, ..Form::new("data", "a", "x") };
        let split = split.field("Content-Type", value);
        refused(&post(&world, &split)?, 400, "InvalidArgument")?;
    }
    for (name, value) in [("x-amz-copy-source", "/data/a"), ("x-amz-rdma-token", "a")] {
        let form = Form::new("data", "c", "x").field(name, value).signed(root);
        refused(&post(&world, &form)?, 400, "InvalidArgument")?;
    }
    // Headers of the request would be covered by nothing.
    for name in ["x-amz-acl", "x-amz-meta-a", "x-keyway-durability"] {
        denied(&world.anonymous(signed().request().header(name, "private"))?)?;
    }
    let two_ways = signed().request().header("authorization", "AWS4-HMAC-SHA256 Credential=a");
    ensure!(world.anonymous(two_ways)?.status == 400);
    refused(
        &post(&world, &Form::new("data", "a", "x").field("acl", "public-read").signed(root))?,
        400,
        "AccessControlListNotSupported",
    )?;

    let fields = Form::new("data", "a", "x").uncovered("x-ignore-a", &"y".repeat(30_000));
    refused(&post(&world, &fields.signed(root))?, 400, "MaxPostPreDataLengthExceededError")?;
    let form = signed();
    let request = Request { body: part("key", "a").into_bytes(), ..form.request() };
    refused(&world.anonymous(request)?, 400, "IncompleteBody")?;
    let nothing = Request { body: b"nothing of the kind".to_vec(), ..form.request() };
    ensure!(world.anonymous(nothing)?.status == 400);
    Ok(())
}

/// Goal: a file that is cut off is no object, and leaves nothing.
#[test]
fn half_a_file_is_none() -> Result<()> {
    let (world, mut s3) = scene()?;
    let root = world.server.credentials();
    let request = Form::new("data", "a", payload(1, 3 << 20)).signed(root).request();
    let bytes = request.header("host", world.server.authority()).bytes();
    let mut connection = Connection::open(world.server.address())?;
    connection.write(&bytes[..2 << 20])?;
    connection.hang_up()?;
    drop(connection);
    expect(&s3.get("data", "a")?, 404)?;
    // A boundary that never comes.
    let form = Form::new("data", "a", payload(1, 100_000)).signed(root);
    let mut request = form.request();
    request.body.truncate(request.body.len() - 80);
    refused(&world.anonymous(request)?, 400, "IncompleteBody")?;
    expect(&s3.get("data", "a")?, 404)
}

/// Goal: who is cut off stays out with the forms that it signed before.
#[test]
fn forms_end_with_their_signers() -> Result<()> {
    let world = World::start()?;
    world.tenant("one")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("data")?, 200)?;
    let anna = world.user("one", "anna", &[statement("Allow", &["s3:*"], &["*"])])?;
    let form = Form::new("data", "a", "x").signed(&anna);
    expect(&post(&world, &form)?, 204)?;
    let at = format!("tenants/one/keys/{}", anna.access_key);
    world.put(&at, &json!({ "user": "anna", "state": "disabled" }))?;
    refused(&post(&world, &form)?, 403, "InvalidAccessKeyId")?;
    world.put(&at, &json!({ "user": "anna" }))?;
    expect(&post(&world, &form)?, 204)?;
    let suspended = json!({ "policies": ["anna-own"], "state": "suspended" });
    world.put("tenants/one/users/anna", &suspended)?;
    refused(&post(&world, &form)?, 403, "InvalidAccessKeyId")?;
    world.put("tenants/one", &json!({ "state": "suspended" }))?;
    ensure!(post(&world, &form)?.status == 403);
    // Another tenant's bucket of that name is not what was signed for: its names are its own.
    world.put("tenants/one", &json!({}))?;
    world.tenant("two")?;
    let thief = world.user("two", "thief", &[statement("Allow", &["s3:*"], &["*"])])?;
    let form = Form::new("data", "a", "y").signed(&thief);
    refused(&post(&world, &form)?, 404, "NoSuchBucket")
}
