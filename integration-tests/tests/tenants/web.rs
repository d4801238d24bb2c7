//! A scene with an issuer, and calls that nobody signs.

use anyhow::{Result, ensure};
use keyway_integration_tests::Server;
use keyway_integration_tests::server::Options;
use keyway_integration_tests::wire::{Connection, Request, Response, encode};
use serde_json::{Value, json};

use crate::idp::Idp;
use crate::temporary::{Temporary, arn, sts_refused};
use crate::world::{World, expect, policy, statement};

pub(crate) const CALL: &str = "sts:AssumeRoleWithWebIdentity";

/// A tenant (number 1) with objects, whose role `reader` whoever works in the project may take.
pub(crate) struct Scene {
    pub(crate) world: World,
}

impl Scene {
    pub(crate) fn start(idp: &Idp, config: &str) -> Result<Self> {
        let world = World {
            server: Server::with(Options { config: config.to_owned(), ..Options::default() })?,
        };
        ensure!(world.tenant("one")? == "000000000001");
        let owner = world.key("one", None)?;
        expect(&world.s3(&owner).create_bucket("data")?, 200)?;
        for key in ["open/a", "shut/a"] {
            expect(&world.s3(&owner).put("data", key, b"x")?, 200)?;
        }
        let read = policy(&[statement("Allow", &["s3:GetObject"], &["data*"])]);
        world.put("tenants/one/policies/read", &json!({ "document": read }))?;
        let scene = Self { world };
        scene.provider(idp, &["keyway"])?;
        scene.role("reader", &idp.name())?;
        Ok(scene)
    }

    /// One where nobody is slowed down, and issuers are asked again at once.
    pub(crate) fn patient(idp: &Idp) -> Result<Self> {
        Self::start(
            idp,
            "[auth]\nfailures_burst = 0\n[oidc]\nrefetch_interval_ms = 0\ntimeout_ms = 1000\n",
        )
    }

    pub(crate) fn provider(&self, idp: &Idp, audiences: &[&str]) -> Result<Value> {
        let document = json!({ "issuer": idp.issuer(), "audiences": audiences });
        self.world.put("tenants/one/providers/hub", &document)
    }

    pub(crate) fn role(&self, name: &str, issuer: &str) -> Result<Value> {
        let mut statement = json!({
            "Effect": "Allow", "Action": CALL,
            "Principal": { "Federated": format!("arn:aws:iam::000000000001:oidc-provider/{issuer}") },
        });
        statement["Condition"] = json!({
            "StringEquals": { format!("{issuer}:aud"): "keyway" },
            "StringLike": { format!("{issuer}:sub"): "project:*" },
        });
        let document = json!({ "trust": policy(&[statement]), "policies": ["read"] });
        self.world.put(&format!("tenants/one/roles/{name}"), &document)
    }

    pub(crate) fn ask(&self, token: &str, more: &[(&str, &str)]) -> Result<Response> {
        let role = arn("reader");
        let mut form = vec![
            ("Action", "AssumeRoleWithWebIdentity"),
            ("RoleArn", role.as_str()),
            ("RoleSessionName", "job-1"),
            ("WebIdentityToken", token),
        ];
        form.retain(|(name, _)| !more.iter().any(|(other, _)| name == other));
        form.extend(more);
        unsigned(&self.world, &form)
    }

    pub(crate) fn taken(&self, token: &str, more: &[(&str, &str)]) -> Result<Temporary> {
        let response = self.ask(token, more)?;
        expect(&response, 200)?;
        Temporary::of(&response)
    }

    pub(crate) fn no(&self, token: &str, code: &str) -> Result<()> {
        let status = if code == "AccessDenied" { 403 } else { 400 };
        sts_refused(&self.ask(token, &[])?, status, code)
    }
}

/// A call that nobody signs.
pub(crate) fn unsigned(world: &World, form: &[(&str, &str)]) -> Result<Response> {
    let mut pairs = vec!["Version=2011-06-15".to_owned()];
    pairs.extend(
        form.iter().map(|(name, text)| format!("{name}={}", encode(text.as_bytes(), false))),
    );
    let request = Request::new("POST", "/")
        .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
        .header("host", world.server.authority())
        .body(pairs.join("&"));
    Ok(Connection::open(world.server.address())?.exchange(&request)?)
}
