//! Calls: what a method and a path mean.

use http::Method;
use keyway_auth::Principal;
use keyway_auth::directory::Name;
use keyway_auth::root::check_access_key;
use percent_encoding::percent_decode_str;

use super::document::SELF;
use super::error::AdminError;

/// What the paths of the administration begin with.
pub(super) const PREFIX: &str = "/_keyway/v1/admin/";

/// All paths, with the methods that they have. The OpenAPI document is made from it.
pub(super) const ROUTES: [(&str, &[Verb]); 14] = [
    ("tenants", &[Verb::Get]),
    ("tenants/{tenant}", &[Verb::Get, Verb::Put, Verb::Delete]),
    ("tenants/{tenant}/users", &[Verb::Get]),
    ("tenants/{tenant}/users/{user}", &[Verb::Get, Verb::Put, Verb::Delete]),
    ("tenants/{tenant}/roles", &[Verb::Get]),
    ("tenants/{tenant}/roles/{role}", &[Verb::Get, Verb::Put, Verb::Delete]),
    ("tenants/{tenant}/groups", &[Verb::Get]),
    ("tenants/{tenant}/groups/{group}", &[Verb::Get, Verb::Put, Verb::Delete]),
    ("tenants/{tenant}/policies", &[Verb::Get]),
    ("tenants/{tenant}/policies/{policy}", &[Verb::Get, Verb::Put, Verb::Delete]),
    ("tenants/{tenant}/providers", &[Verb::Get]),
    ("tenants/{tenant}/providers/{provider}", &[Verb::Get, Verb::Put, Verb::Delete]),
    ("tenants/{tenant}/keys", &[Verb::Get]),
    ("tenants/{tenant}/keys/{key}", &[Verb::Get, Verb::Put, Verb::Delete]),
];

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// It is told.
    Get,
    /// It is as the document says.
    Put,
    /// It is gone.
    Delete,
}

/// What it is done to. Tenants are named as the path has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// All tenants.
    Tenants,
    /// A tenant.
    Tenant(String),
    /// A tenant's users.
    Users(String),
    /// A user.
    User(String, Name),
    /// A tenant's roles.
    Roles(String),
    /// A role.
    Role(String, Name),
    /// A tenant's groups.
    Groups(String),
    /// A group.
    Group(String, Name),
    /// A tenant's policies.
    Policies(String),
    /// A policy.
    Policy(String, Name),
    /// A tenant's OpenID Connect providers.
    Providers(String),
    /// A provider.
    Provider(String, Name),
    /// A tenant's keys.
    Keys(String),
    /// A key.
    Key(String, String),
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminCall {
    /// What is done.
    pub verb: Verb,
    /// To what.
    pub target: Target,
}

impl AdminCall {
    /// Whether a path is the administration's.
    pub fn is_meant(path: &str) -> bool {
        path.starts_with(PREFIX)
    }

    /// The call that a method and a path make.
    ///
    /// # Errors
    /// [`AdminError::NoSuchEndpoint`], [`AdminError::MethodNotAllowed`], and
    /// [`AdminError::Name`] and [`AdminError::Credentials`] for a name that nothing can have.
    pub fn of(method: &Method, path: &str) -> Result<Self, AdminError> {
        let rest = path.strip_prefix(PREFIX).ok_or(AdminError::NoSuchEndpoint)?;
        let parts: Result<Vec<_>, _> =
            rest.split('/').map(|part| percent_decode_str(part).decode_utf8()).collect();
        let parts = parts.map_err(|_| AdminError::NoSuchEndpoint)?;
        let parts: Vec<&str> = parts.iter().map(|part| &**part).collect();
        let name = |text: &str| text.parse::<Name>().map_err(AdminError::Name);
        let tenant = |text: &str| match text {
            SELF | Principal::ROOT => Ok(text.to_owned()),
            _ => name(text).map(|name| name.as_str().to_owned()),
        };
        let target = match parts[..] {
            ["tenants"] => Target::Tenants,
            ["tenants", of] if !of.is_empty() => Target::Tenant(tenant(of)?),
            ["tenants", of, "users"] => Target::Users(tenant(of)?),
            ["tenants", of, "users", user] => Target::User(tenant(of)?, name(user)?),
            ["tenants", of, "roles"] => Target::Roles(tenant(of)?),
            ["tenants", of, "roles", role] => Target::Role(tenant(of)?, name(role)?),
            ["tenants", of, "groups"] => Target::Groups(tenant(of)?),
            ["tenants", of, "groups", group] => Target::Group(tenant(of)?, name(group)?),
            ["tenants", of, "policies"] => Target::Policies(tenant(of)?),
            ["tenants", of, "policies", policy] => Target::Policy(tenant(of)?, name(policy)?),
            ["tenants", of, "providers"] => Target::Providers(tenant(of)?),
            ["tenants", of, "providers", provider] => {
                Target::Provider(tenant(of)?, name(provider)?)
            }
            ["tenants", of, "keys"] => Target::Keys(tenant(of)?),
            ["tenants", of, "keys", key] => {
                check_access_key(key)?;
                Target::Key(tenant(of)?, key.to_owned())
            }
            _ => return Err(AdminError::NoSuchEndpoint),
        };
        let one = !matches!(
            target,
            Target::Tenants
                | Target::Users(_)
                | Target::Roles(_)
                | Target::Groups(_)
                | Target::Policies(_)
                | Target::Providers(_)
                | Target::Keys(_)
        );
        let verb = match *method {
            Method::GET => Verb::Get,
            Method::PUT if one => Verb::Put,
            Method::DELETE if one => Verb::Delete,
            _ if one => return Err(AdminError::MethodNotAllowed("GET, PUT, DELETE")),
            _ => return Err(AdminError::MethodNotAllowed("GET")),
        };
        Ok(Self { verb, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_calls() {
        let of = |method: Method, path: &str| AdminCall::of(&method, path);
        let user = of(Method::PUT, "/_keyway/v1/admin/tenants/acme/users/a%2Bb").expect("a call");
        let name = "a+b".parse().expect("a name");
        assert_eq!(user.target, Target::User("acme".to_owned(), name));
        assert_eq!(user.verb, Verb::Put);
        for (path, verbs) in ROUTES {
            let path = format!("{PREFIX}{}", path.replace(['{', '}'], ""));
            for method in [Method::GET, Method::PUT, Method::DELETE, Method::POST] {
                let verb = of(method, &path).ok().map(|call| call.verb);
                assert!(verb.is_none_or(|verb| verbs.contains(&verb)), "{path}");
            }
            let found = [Method::GET, Method::PUT, Method::DELETE].map(|m| of(m, &path).is_ok());
            assert_eq!(found.iter().filter(|found| **found).count(), verbs.len(), "{path}");
        }
        for path in ["", "tenants/", "tenants/a/b", "tenants/a/users/x/y", "users", "tenants/%ff"] {
            let error = of(Method::GET, &format!("{PREFIX}{path}")).expect_err("no endpoint");
            assert!(matches!(error, AdminError::NoSuchEndpoint), "{path}");
        }
        let odd = of(Method::GET, "/_keyway/v1/admin/tenants/a/users/x%2Fy");
        assert!(matches!(odd, Err(AdminError::Name(_))));
    }
}
