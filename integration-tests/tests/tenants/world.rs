//! A server with tenants.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use keyway_integration_tests::server::{Options, binary};
use keyway_integration_tests::sigv4::Credentials;
use keyway_integration_tests::wire::{Connection, Request, Response};
use keyway_integration_tests::{S3, Server};
use serde_json::{Value, json};

/// What a policy of one statement says.
pub(crate) fn statement(effect: &str, actions: &[&str], resources: &[&str]) -> Value {
    let arns: Vec<String> = resources
        .iter()
        .map(|resource| match *resource {
            "*" => "*".to_owned(),
            name => format!("arn:aws:s3:::{name}"),
        })
        .collect();
    json!({ "Effect": effect, "Action": actions, "Resource": arns })
}

pub(crate) fn policy(statements: &[Value]) -> String {
    json!({ "Version": "2012-10-17", "Statement": statements }).to_string()
}

/// A bucket policy's statement.
pub(crate) fn to(principal: Value, mut statement: Value) -> Value {
    statement["Principal"] = principal;
    statement
}

pub(crate) struct World {
    pub(crate) server: Server,
}

impl World {
    /// A server that lets all who fail try again at once: these tests fail on purpose.
    pub(crate) fn start() -> Result<Self> {
        let config = "[auth]\nfailures_burst = 0\n".to_owned();
        Ok(Self { server: Server::with(Options { config, ..Options::default() })? })
    }

    pub(crate) fn root(&self) -> S3 {
        S3::of(&self.server)
    }

    pub(crate) fn s3(&self, credentials: &Credentials) -> S3 {
        S3::at(self.server.address(), credentials)
    }

    /// A command of the administration, as the root; tells what it printed, where that is JSON.
    pub(crate) fn admin(&self, arguments: &[&str]) -> Result<Value> {
        let root = self.server.credentials();
        let output = Command::new(binary()?)
            .arg("admin")
            .args(arguments)
            .env("KEYWAY_ENDPOINT", self.server.url())
            .env("KEYWAY_ACCESS_KEY", &root.access_key)
            .env("KEYWAY_SECRET_KEY", &root.secret_key)
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{arguments:?}: {said}");
        Ok(serde_json::from_slice(&output.stdout).unwrap_or(Value::Null))
    }

    /// A call of the administration, as somebody.
    pub(crate) fn call(
        &self,
        who: &Credentials,
        method: &str,
        path: &str,
        document: Option<&Value>,
    ) -> Result<(u16, Value)> {
        let request = Request::new(method, format!("/_keyway/v1/admin/{path}"));
        let request = match document {
            Some(document) => request.body(document.to_string()),
            None => request,
        };
        let response = self.s3(who).send(request)?;
        let text = response.text();
        let json = if text.is_empty() {
            Value::Null
        } else {
            serde_json::from_str(&text).with_context(|| text.clone())?
        };
        Ok((response.status, json))
    }

    /// A call of the root's that goes well.
    pub(crate) fn put(&self, path: &str, document: &Value) -> Result<Value> {
        let (status, json) = self.call(self.server.credentials(), "PUT", path, Some(document))?;
        ensure!(matches!(status, 200 | 201), "PUT {path}: {status} {json}");
        Ok(json)
    }

    /// A tenant; gives its account number.
    pub(crate) fn tenant(&self, name: &str) -> Result<String> {
        let made = self.put(&format!("tenants/{name}"), &json!({}))?;
        Ok(made["number"].as_str().context("it has a number")?.to_owned())
    }

    /// A key of a user, or of the tenant itself.
    pub(crate) fn key(&self, tenant: &str, user: Option<&str>) -> Result<Credentials> {
        let id = Credentials::random().access_key;
        let made = self.put(&format!("tenants/{tenant}/keys/{id}"), &json!({ "user": user }))?;
        let secret = made["secret"].as_str().context("a new key shows its secret")?.to_owned();
        Ok(Credentials { access_key: id, secret_key: secret })
    }

    /// A user with a policy of these statements, and its key.
    pub(crate) fn user(
        &self,
        tenant: &str,
        name: &str,
        statements: &[Value],
    ) -> Result<Credentials> {
        let own = format!("{name}-own");
        self.put(
            &format!("tenants/{tenant}/policies/{own}"),
            &json!({ "document": policy(statements) }),
        )?;
        self.put(&format!("tenants/{tenant}/users/{name}"), &json!({ "policies": [own] }))?;
        self.key(tenant, Some(name))
    }

    /// A request without a signature.
    pub(crate) fn anonymous(&self, request: Request) -> Result<Response> {
        self.anonymous_as_is(&request.header("host", self.server.authority()))
    }

    /// A request as it is.
    pub(crate) fn anonymous_as_is(&self, request: &Request) -> Result<Response> {
        Ok(Connection::open(self.server.address())?.exchange(request)?)
    }

    pub(crate) fn bucket_policy(
        &self,
        who: &Credentials,
        bucket: &str,
        statements: &[Value],
    ) -> Result<Response> {
        let request = Request::new("PUT", format!("/{bucket}")).query("policy", "");
        Ok(self.s3(who).send(request.body(policy(statements)))?)
    }

    /// Lets a bucket be public, if its policy says so.
    pub(crate) fn unblock(&self, who: &Credentials, bucket: &str) -> Result<()> {
        let request = Request::new("DELETE", format!("/{bucket}")).query("publicAccessBlock", "");
        expect(&self.s3(who).send(request)?, 204)
    }
}

/// Fails unless the answer has this status.
pub(crate) fn expect(response: &Response, status: u16) -> Result<()> {
    ensure!(response.status == status, "{} and not {status}: {}", response.status, response.text());
    Ok(())
}

/// Fails unless the answer is this refusal.
pub(crate) fn refused(response: &Response, status: u16, code: &str) -> Result<()> {
    expect(response, status)?;
    ensure!(response.code().as_deref() == Some(code), "not {code}: {}", response.text());
    Ok(())
}

/// Fails unless access is denied.
pub(crate) fn denied(response: &Response) -> Result<()> {
    refused(response, 403, "AccessDenied")
}
