//! Bucket policies, public access, ownership and ACLs, and other tenants' buckets.

use anyhow::{Result, ensure};
use keyway_integration_tests::wire::{Request, element};
use serde_json::json;

use crate::world::{World, denied, expect, refused, statement, to};

const OWNER: &str = "x-amz-expected-bucket-owner";

#[test]
fn a_bucket_policy_lets_others_in_as_far_as_both_sides_allow() -> Result<()> {
    let world = World::start()?;
    let (one, two) = (world.tenant("one")?, world.tenant("two")?);
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("shared")?, 200)?;
    expect(&world.s3(&owner).put("shared", "a", b"abc")?, 200)?;
    let anna =
        world.user("two", "anna", &[statement("Allow", &["s3:GetObject"], &["shared/*"])])?;
    let ben = world.user("two", "ben", &[statement("Deny", &["s3:PutObject"], &["*"])])?;
    let get = || Request::object("GET", "shared", "a").header(OWNER, &one);
    denied(&world.s3(&anna).send(get())?)?;
    let whom = json!({ "AWS": format!("arn:aws:iam::{two}:root") });
    let shared = to(whom, statement("Allow", &["s3:GetObject", "s3:PutObject"], &["shared/*"]));
    expect(&world.bucket_policy(&owner, "shared", &[shared])?, 204)?;
    ensure!(world.s3(&anna).send(get())?.body == b"abc");
    denied(&world.s3(&ben).send(get())?)?;
    let put = Request::object("PUT", "shared", "b").header(OWNER, &one).body("x");
    denied(&world.s3(&anna).send(put)?)?;
    // Without the owner's name it is one's own bucket that is meant.
    let own = world.s3(&anna).get("shared", "a")?;
    ensure!(matches!(own.status, 403 | 404), "{}", own.text());

    let status = Request::new("GET", "/shared").query("policyStatus", "");
    let text = world.s3(&owner).send(status)?.text();
    ensure!(element(&text, "IsPublic") == Some("false"), "{text}");
    let gone = Request::new("DELETE", "/shared").query("policy", "");
    expect(&world.s3(&owner).send(gone)?, 204)?;
    denied(&world.s3(&anna).send(get())?)
}

#[test]
fn a_bucket_policy_may_be_enough_at_home_and_denies_first() -> Result<()> {
    let world = World::start()?;
    let one = world.tenant("one")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("home")?, 200)?;
    let anna = world.user("one", "anna", &[statement("Deny", &["s3:DeleteObject"], &["*"])])?;
    let ben = world.user("one", "ben", &[statement("Allow", &["s3:*"], &["*"])])?;
    let user = |name: &str| json!({ "AWS": format!("arn:aws:iam::{one}:user/{name}") });
    let statements = [
        to(user("anna"), statement("Allow", &["s3:PutObject"], &["home/*"])),
        to(user("ben"), statement("Deny", &["s3:PutObject"], &["home/*"])),
    ];
    expect(&world.bucket_policy(&owner, "home", &statements)?, 204)?;
    expect(&world.s3(&anna).put("home", "a", b"x")?, 200)?;
    denied(&world.s3(&ben).put("home", "a", b"x")?)?;

    // Malformed, another bucket's, or one that locks its author out: refused, nothing changes.
    let other = to(json!("*"), statement("Deny", &["s3:GetObject"], &["other/*"]));
    refused(&world.bucket_policy(&owner, "home", &[other])?, 400, "MalformedPolicy")?;
    let all = to(json!("*"), statement("Deny", &["s3:*"], &["home", "home/*"]));
    refused(
        &world.bucket_policy(&ben, "home", std::slice::from_ref(&all))?,
        400,
        "MalformedPolicy",
    )?;
    // The root can always take it back.
    let put = Request::new("PUT", "/home").query("policy", "");
    let put = put.header("x-amz-confirm-remove-self-bucket-access", "true");
    let body = crate::world::policy(&[all]);
    expect(&world.s3(&ben).send(put.body(body))?, 204)?;
    denied(&world.s3(&owner).put("home", "a", b"x")?)?;
    let gone = || Request::new("DELETE", "/home").query("policy", "");
    denied(&world.s3(&ben).send(gone())?)?;
    expect(&world.s3(&owner).send(gone())?, 204)?;
    expect(&world.s3(&owner).put("home", "a", b"x")?, 200)
}

#[test]
fn everybody_is_let_in_where_policy_and_block_say_so() -> Result<()> {
    let world = World::start()?;
    let one = world.tenant("one")?;
    let owner = world.key("one", None)?;
    expect(&world.s3(&owner).create_bucket("web")?, 200)?;
    expect(&world.s3(&owner).put("web", "index", b"hello")?, 200)?;
    let public = to(json!("*"), statement("Allow", &["s3:GetObject"], &["web/*"]));
    denied(&world.bucket_policy(&owner, "web", std::slice::from_ref(&public))?)?;
    world.unblock(&owner, "web")?;
    let block = || Request::new("GET", "/web").query("publicAccessBlock", "");
    refused(&world.s3(&owner).send(block())?, 404, "NoSuchPublicAccessBlockConfiguration")?;
    expect(&world.bucket_policy(&owner, "web", &[public])?, 204)?;

    let get = || Request::new("GET", "/web/index").header(OWNER, &one);
    ensure!(world.anonymous(get())?.body == b"hello");
    // Of the tenant that is meant without a name, this is not a bucket; nor is that said.
    denied(&world.anonymous(Request::new("GET", "/web/index"))?)?;
    denied(&world.anonymous(Request::new("GET", "/web/none").header(OWNER, &one))?)?;
    denied(&world.anonymous(Request::new("GET", "/web").header(OWNER, &one))?)?;
    denied(&world.anonymous(Request::new("PUT", "/web/index").header(OWNER, &one))?)?;
    denied(&world.anonymous(Request::new("GET", "/"))?)?;
    denied(&world.anonymous(Request::new("GET", "/_keyway/v1/rails"))?)?;

    let document = "<PublicAccessBlockConfiguration>\
        <RestrictPublicBuckets>true</RestrictPublicBuckets></PublicAccessBlockConfiguration>";
    let put = Request::new("PUT", "/web").query("publicAccessBlock", "").body(document);
    expect(&world.s3(&owner).send(put)?, 200)?;
    let told = world.s3(&owner).send(block())?.text();
    ensure!(element(&told, "RestrictPublicBuckets") == Some("true"), "{told}");
    ensure!(element(&told, "BlockPublicPolicy") == Some("false"), "{told}");
    denied(&world.anonymous(get())?)?;
    expect(&world.s3(&owner).get("web", "index")?, 200)?;

    // The tenant's settings add up with the bucket's.
    world.unblock(&owner, "web")?;
    ensure!(world.anonymous(get())?.status == 200);
    let block = json!({ "public_access_block": { "restrict_public_buckets": true } });
    world.put("tenants/one", &block)?;
    denied(&world.anonymous(get())?)
}

#[test]
fn owners_own_and_acls_say_so() -> Result<()> {
    let world = World::start()?;
    let mut root = world.root();
    expect(&root.create_bucket("own")?, 200)?;
    expect(&root.put("own", "a", b"x")?, 200)?;
    let controls = |method: &str| Request::new(method, "/own").query("ownershipControls", "");
    let rule = |ownership: &str| {
        format!(
            "<OwnershipControls><Rule><ObjectOwnership>{ownership}</ObjectOwnership></Rule>\
             </OwnershipControls>"
        )
    };
    let told = root.send(controls("GET"))?.text();
    ensure!(element(&told, "ObjectOwnership") == Some("BucketOwnerEnforced"), "{told}");
    expect(&root.send(controls("PUT").body(rule("BucketOwnerEnforced")))?, 200)?;
    expect(&root.send(controls("PUT").body(rule("ObjectWriter")))?, 501)?;
    expect(&root.send(controls("DELETE"))?, 204)?;
    refused(&root.send(controls("GET"))?, 404, "OwnershipControlsNotFoundError")?;

    for path in ["/own", "/own/a"] {
        let acl =
            |canned: &str| Request::new("PUT", path).query("acl", "").header("x-amz-acl", canned);
        expect(&root.send(acl("private"))?, 200)?;
        expect(&root.send(acl("bucket-owner-full-control"))?, 200)?;
        denied(&root.send(acl("public-read"))?)?;
        refused(&root.send(acl("aws-exec-read"))?, 400, "AccessControlListNotSupported")?;
        refused(&root.send(acl("no-such"))?, 400, "InvalidArgument")?;
        let told = root.send(Request::new("GET", path).query("acl", ""))?.text();
        ensure!(element(&told, "Permission") == Some("FULL_CONTROL"), "{told}");
        let owner = element(&told, "ID").unwrap_or_default().to_owned();
        let grant = |id: &str| {
            Request::new("PUT", path)
                .query("acl", "")
                .header("x-amz-grant-full-control", format!("id=\"{id}\""))
        };
        expect(&root.send(grant(&owner))?, 200)?;
        let other = format!("{:064x}", 77);
        refused(&root.send(grant(&other))?, 400, "AccessControlListNotSupported")?;
        root.send(Request::new("DELETE", "/own").query("publicAccessBlock", ""))?;
        refused(&root.send(acl("public-read"))?, 400, "AccessControlListNotSupported")?;
        let all = "<PublicAccessBlockConfiguration><BlockPublicAcls>true</BlockPublicAcls>\
            </PublicAccessBlockConfiguration>";
        let put = Request::new("PUT", "/own").query("publicAccessBlock", "").body(all);
        expect(&root.send(put)?, 200)?;
    }
    Ok(())
}
