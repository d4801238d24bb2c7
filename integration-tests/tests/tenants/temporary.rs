//! Temporary credentials: how tests get them, and a scene with a role.

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::sigv4::{Credentials, Signer};
use keyway_integration_tests::wire::{Connection, Request, Response, element, encode};
use serde_json::{Value, json};

use crate::world::{World, expect, policy, statement};

pub(crate) const TOKEN: &str = "x-amz-security-token";

/// Credentials with their token.
#[derive(Clone)]
pub(crate) struct Temporary {
    pub(crate) keys: Credentials,
    pub(crate) token: String,
}

impl Temporary {
    pub(crate) fn of(response: &Response) -> Result<Self> {
        let xml = response.text();
        let text = |name| element(&xml, name).map(str::to_owned).with_context(|| xml.clone());
        let keys =
            Credentials { access_key: text("AccessKeyId")?, secret_key: text("SecretAccessKey")? };
        Ok(Self { keys, token: text("SessionToken")? })
    }

    pub(crate) fn send(&self, world: &World, request: Request) -> Result<Response> {
        Ok(world.s3(&self.keys).send(request.header(TOKEN, &self.token))?)
    }

    pub(crate) fn get(&self, world: &World, key: &str) -> Result<Response> {
        self.send(world, Request::object("GET", "data", key))
    }
}

/// A call for credentials.
pub(crate) fn sts(
    world: &World,
    by: &Credentials,
    token: Option<&str>,
    form: &[(&str, &str)],
) -> Result<Response> {
    let mut pairs = vec!["Version=2011-06-15".to_owned()];
    for (name, value) in form {
        pairs.push(format!("{name}={}", encode(value.as_bytes(), false)));
    }
    let mut request = Request::new("POST", "/")
        .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
        .header("host", world.server.authority())
        .body(pairs.join("&"));
    if let Some(token) = token {
        request = request.header(TOKEN, token);
    }
    let signer = Signer { service: "sts".to_owned(), ..Signer::new(by) };
    signer.sign(&mut request);
    Ok(Connection::open(world.server.address())?.exchange(&request)?)
}

pub(crate) fn arn(role: &str) -> String {
    format!("arn:aws:iam::000000000001:role/{role}")
}

pub(crate) fn assume(
    world: &World,
    by: &Credentials,
    role: &str,
    more: &[(&str, &str)],
) -> Result<Response> {
    let role = arn(role);
    let mut form = vec![("Action", "AssumeRole"), ("RoleArn", &role), ("RoleSessionName", "job-1")];
    form.extend(more);
    sts(world, by, None, &form)
}

pub(crate) fn taken(
    world: &World,
    by: &Credentials,
    role: &str,
    more: &[(&str, &str)],
) -> Result<Temporary> {
    let response = assume(world, by, role, more)?;
    expect(&response, 200)?;
    Temporary::of(&response)
}

/// Fails unless the answer is this refusal of STS's.
pub(crate) fn sts_refused(response: &Response, status: u16, code: &str) -> Result<()> {
    let text = response.text();
    ensure!(response.status == status, "{} and not {status}: {text}", response.status);
    ensure!(text.starts_with("<ErrorResponse ") && text.contains("<Type>Sender</Type>"), "{text}");
    ensure!(element(&text, "Code") == Some(code), "not {code}: {text}");
    Ok(())
}

pub(crate) fn trust(principal: &Value, condition: Option<Value>) -> String {
    let mut statement =
        json!({ "Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole" });
    if let Some(condition) = condition {
        statement["Condition"] = condition;
    }
    policy(&[statement])
}

/// A statement that allows nothing.
pub(crate) fn idle() -> Value {
    statement("Deny", &["s3:DeleteBucket"], &["*"])
}

pub(crate) fn user(name: &str) -> Value {
    json!({ "AWS": format!("arn:aws:iam::000000000001:user/{name}") })
}

/// A tenant (number 1) with objects in a bucket; anna, who may take the role that reads them, and
/// ben, who may not.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) owner: Credentials,
    pub(crate) anna: Credentials,
    pub(crate) ben: Credentials,
}

impl Scene {
    pub(crate) fn start() -> Result<Self> {
        let world = World::start()?;
        ensure!(world.tenant("one")? == "000000000001");
        let owner = world.key("one", None)?;
        expect(&world.s3(&owner).create_bucket("data")?, 200)?;
        for key in ["open/a", "shut/a"] {
            expect(&world.s3(&owner).put("data", key, b"x")?, 200)?;
        }
        let read = policy(&[statement("Allow", &["s3:GetObject", "s3:ListBucket"], &["data*"])]);
        world.put("tenants/one/policies/read", &json!({ "document": read }))?;
        let ask = [statement("Allow", &["sts:AssumeRole"], &["*"])];
        let (anna, ben) = (world.user("one", "anna", &[idle()])?, world.user("one", "ben", &ask)?);
        let scene = Self { world, owner, anna, ben };
        scene.role("reader", &trust(&user("anna"), None))?;
        Ok(scene)
    }

    pub(crate) fn role(&self, name: &str, trust: &str) -> Result<Value> {
        let document = json!({ "trust": trust, "policies": ["read"] });
        self.world.put(&format!("tenants/one/roles/{name}"), &document)
    }
}
