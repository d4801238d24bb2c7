//! May somebody take a role? The role's trust policy must say so, whatever else does.
//!
//! Source: "Policy evaluation logic" and "Methods to assume a role" in IAM's guide.

use super::Policy;
use super::evaluate::{
    AllowedBy, Decision, DeniedBy, Policies, Request, Source, StatementRef, ask,
};
use super::principal::Naming;
use super::statement::Verdict;

/// Decides whether a role may be taken. `policies` are the caller's; its bucket's has no say.
/// docs/policies.md says by what rules.
pub fn may_assume<'p>(
    request: &Request<'_>,
    trust: &'p Policy,
    policies: &Policies<'p>,
) -> Decision<'p> {
    let caller = request.caller;
    if caller.is_root() {
        return Decision::Deny(DeniedBy::RootTakesNoRole);
    }
    let session = match ask(policies.session, Source::Session, request) {
        Ok(allowed) => allowed,
        Err(denied) => return Decision::Deny(DeniedBy::Statement(denied)),
    };
    let identity = match ask(policies.identity, Source::Identity, request) {
        Ok(allowed) => allowed,
        Err(denied) => return Decision::Deny(DeniedBy::Statement(denied)),
    };
    let verdict = Verdict::of(&trust.statements, request);
    let refer = |number| StatementRef { source: Source::Trust, number, sid: trust.sid(number) };
    if let Some(number) = verdict.deny {
        return Decision::Deny(DeniedBy::Statement(refer(number)));
    }
    // Nobody is let in who did not sign.
    let Some((number, naming)) = verdict.allow.filter(|_| caller.tenant().is_some()) else {
        return Decision::Deny(DeniedBy::NoTrustPolicy);
    };
    let own = request.owner == caller.tenant();
    if own && naming == Naming::Session {
        return Decision::Allow(AllowedBy::Statement(refer(number)));
    }
    // One that names a tenant leaves it to that tenant whom of its users to allow.
    if identity.is_none() && !(own && naming >= Naming::Direct) {
        return Decision::Deny(DeniedBy::NoIdentityPolicy);
    }
    if !policies.session.is_empty() && session.is_none() {
        return Decision::Deny(DeniedBy::NoSessionPolicy);
    }
    Decision::Allow(AllowedBy::Statement(refer(number)))
}

/// Decides whether a role may be taken by somebody for whom an issuer vouches. They have no policies
/// of their own: the role's alone decides, and names the provider in so many words.
pub fn may_assume_with_web_identity<'p>(request: &Request<'_>, trust: &'p Policy) -> Decision<'p> {
    let verdict = Verdict::of(&trust.statements, request);
    let refer = |number| StatementRef { source: Source::Trust, number, sid: trust.sid(number) };
    if let Some(number) = verdict.deny {
        return Decision::Deny(DeniedBy::Statement(refer(number)));
    }
    match verdict.allow {
        Some((number, _)) => Decision::Allow(AllowedBy::Statement(refer(number))),
        None => Decision::Deny(DeniedBy::NoTrustPolicy),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use keyway_proto::TenantId;

    use super::super::{Action, Caller, Context, Key, Resource};
    use super::*;

    const HOME: TenantId = TenantId(7);
    const AWAY: TenantId = TenantId(8);

    fn trust(principal: &str, more: &str) -> Policy {
        let text = format!(
            r#"{{"Version": "2012-10-17", "Statement": {{"Effect": "Allow",
                "Principal": {principal}, "Action": "sts:AssumeRole"{more}}}}}"#
        );
        Policy::trust(&text).expect("a trust policy")
    }

    fn says(effect: &str) -> Arc<Policy> {
        let text = format!(
            r#"{{"Version": "2012-10-17", "Statement": {{"Effect": "{effect}",
                "Action": "sts:AssumeRole", "Resource": "arn:aws:iam::*:role/reader"}}}}"#
        );
        Arc::new(Policy::identity(&text).expect("a policy"))
    }

    fn decide(
        caller: &Caller,
        trust: &Policy,
        own: &[Arc<Policy>],
        session: &[Arc<Policy>],
    ) -> bool {
        let mut context = Context::new();
        context.set(Key::ExternalId, "e-1").set(Key::RoleSessionName, "job");
        let resource = &Resource::role(HOME, "reader");
        let (action, owner, now) = (Action::AssumeRole, Some(HOME), Timestamp::UNIX_EPOCH);
        let request = Request { caller, action, resource, owner, now, context: &context };
        let policies = Policies { identity: own, session, ..Policies::default() };
        may_assume(&request, trust, &policies).is_allow()
    }

    /// Goal: the table of who must allow, for each way of naming the caller.
    #[test]
    fn both_sides_have_a_say() {
        let (anna, guest) = (Caller::user(HOME, "anna", "A"), Caller::user(AWAY, "guest", "G"));
        let (allow, deny) = ([says("Allow")], [says("Deny")]);
        let user = r#"{"AWS": ["arn:aws:iam::000000000007:user/anna",
            "arn:aws:iam::000000000008:user/guest"]}"#;
        let tenants = r#"{"AWS": ["000000000007", "arn:aws:iam::000000000008:root"]}"#;
        let nobody = r#"{"AWS": "arn:aws:iam::000000000007:user/ben"}"#;
        for (named, caller, alone, allowed) in [
            (user, &anna, true, true),
            (tenants, &anna, false, true),
            (nobody, &anna, false, false),
            (r#""*""#, &anna, true, true),
            (user, &guest, false, true),
            (tenants, &guest, false, true),
            (nobody, &guest, false, false),
            (r#""*""#, &guest, false, true),
            (r#""*""#, &Caller::anonymous(), false, false),
            (r#""*""#, &Caller::root(HOME), false, false),
            (tenants, &Caller::root(HOME), false, false),
        ] {
            let trust = trust(named, "");
            assert_eq!(decide(caller, &trust, &[], &[]), alone, "{named} {caller}");
            assert_eq!(decide(caller, &trust, &allow, &[]), allowed, "{named} {caller}");
            assert!(!decide(caller, &trust, &deny, &[]), "{named} {caller}");
            // A key or session that is narrowed to something else takes no role.
            assert!(!decide(caller, &trust, &allow, &deny), "{named} {caller}");
            let other = Policy::session(
                r#"{"Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}"#,
            );
            let other = [Arc::new(other.expect("a policy"))];
            assert!(!decide(caller, &trust, &allow, &other), "{named} {caller}");
        }
        let chained = Caller::session(HOME, "first", "job", "R");
        let role = trust(r#"{"AWS": "arn:aws:iam::000000000007:role/first"}"#, "");
        assert!(decide(&chained, &role, &[], &[]) && !decide(&anna, &role, &allow, &[]));
    }

    #[test]
    fn conditions_are_asked() {
        let anna = Caller::user(HOME, "anna", "A");
        let with = |condition: &str| {
            let user = r#"{"AWS": "arn:aws:iam::000000000007:user/anna"}"#;
            let trust = trust(user, &format!(r#", "Condition": {condition}"#));
            decide(&anna, &trust, &[], &[])
        };
        assert!(with(r#"{"StringEquals": {"sts:ExternalId": "e-1"}}"#));
        assert!(!with(r#"{"StringEquals": {"sts:ExternalId": "e-2"}}"#));
        assert!(with(r#"{"StringLike": {"sts:RoleSessionName": "j*"}}"#));
        assert!(!with(r#"{"StringEquals": {"aws:PrincipalAccount": "000000000008"}}"#));
    }

    /// Goal: web identities take the roles that name their provider, and what their token says
    /// is asked by their issuer's name.
    #[test]
    fn providers_are_trusted_by_name() {
        const HERE: &str = "arn:aws:iam::000000000007:oidc-provider/idp.example.com/a";
        let issuer: crate::oidc::Issuer = "https://idp.example.com/a".parse().expect("an issuer");
        let caller = Caller::federated(HOME, &issuer, "keyway", "repo:acme/train");
        let take = |statement: &str, action: Action| {
            let text = format!(r#"{{"Version": "2012-10-17", "Statement": [{statement}]}}"#);
            let trust = Policy::trust(&text).expect("a trust policy");
            let mut context = Context::new();
            context.set_claim("idp.example.com/a", "sub", vec!["repo:acme/train".into()]);
            context.set_claim("idp.example.com/a", "amr", vec!["pwd".into(), "otp".into()]);
            let resource = &Resource::role(HOME, "reader");
            let (owner, now) = (Some(HOME), Timestamp::UNIX_EPOCH);
            let caller = &caller;
            let request = Request { caller, action, resource, owner, now, context: &context };
            may_assume_with_web_identity(&request, &trust).is_allow()
        };
        let allow = |principal: &str, action: &str, condition: &str| {
            format!(
                r#"{{"Effect": "Allow", "Principal": {principal}, "Action": "{action}",
                    "Condition": {condition}}}"#
            )
        };
        let federated = |arn: &str| format!(r#"{{"Federated": "{arn}"}}"#);
        let (web, by_sub) = ("sts:AssumeRoleWithWebIdentity", |value: &str| {
            format!(r#"{{"StringLike": {{"idp.example.com/a:sub": "{value}"}}}}"#)
        });
        let taken = |principal: &str, action: &str, condition: &str| {
            take(&allow(principal, action, condition), Action::AssumeRoleWithWebIdentity)
        };
        assert!(taken(&federated(HERE), web, &by_sub("repo:acme/*")));
        assert!(taken(&federated(HERE), "sts:AssumeRole*", &by_sub("repo:acme/*")));
        let amr = r#"{"ForAnyValue:StringEquals": {"IDP.example.com/a:AMR": "otp"}}"#;
        assert!(taken(&federated(HERE), web, amr));
        assert!(!taken(&federated(HERE), web, &by_sub("repo:other/*")));
        assert!(!taken(&federated(HERE), "sts:AssumeRole", "{}"));
        for other in [
            "arn:aws:iam::000000000008:oidc-provider/idp.example.com/a",
            "arn:aws:iam::000000000007:oidc-provider/idp.example.com",
            "arn:aws:iam::000000000007:oidc-provider/idp.example.com/A",
        ] {
            assert!(!taken(&federated(other), web, "{}"), "{other}");
        }
        // Who does not name the provider does not mean it.
        for wide in [r#""*""#, r#"{"AWS": "*"}"#, r#"{"AWS": "000000000007"}"#] {
            assert!(!taken(wide, web, "{}"), "{wide}");
        }
        // To deny everybody is to deny them, too.
        let good = allow(&federated(HERE), web, "{}");
        for (whom, denied) in [
            (r#""Principal": "*""#.to_owned(), true),
            (format!(r#""NotPrincipal": {}"#, federated(HERE)), false),
            (r#""NotPrincipal": {"AWS": "000000000007"}"#.to_owned(), true),
        ] {
            let deny = format!(r#"{{"Effect": "Deny", {whom}, "Action": "{web}"}}"#);
            let both = format!("{good}, {deny}");
            assert_eq!(take(&both, Action::AssumeRoleWithWebIdentity), !denied, "{whom}");
        }
        // Whoever signs is not a web identity.
        let anna = Caller::user(HOME, "anna", "A");
        let text = format!(r#"{{"Statement": {good}}}"#);
        let trusted = Policy::trust(&text).expect("a trust policy");
        assert!(!decide(&anna, &trusted, &[says("Allow")], &[]));
    }

    #[test]
    fn what_is_no_trust_policy_is_refused() {
        for (statement, said) in [
            (r#""Principal": "*", "Action": "s3:GetObject""#, "sts:AssumeRole"),
            (r#""Principal": "*", "Action": "*""#, "sts:AssumeRole"),
            (r#""Principal": "*", "Action": "sts:TagSession""#, "sts:AssumeRole"),
            (r#""Principal": "*", "NotAction": "sts:AssumeRole""#, "NotAction"),
            (r#""Principal": "*", "Action": "sts:AssumeRole", "Resource": "*""#, "Resource"),
            (r#""Action": "sts:AssumeRole""#, "Principal"),
            (r#""NotPrincipal": "*", "Action": "sts:AssumeRole""#, "NotPrincipal"),
            (r#""Principal": {"Service": "ec2"}, "Action": "sts:AssumeRole""#, "Service"),
            (
                r#""Principal": "*", "Action": "sts:AssumeRole",
                    "Condition": {"StringEquals": {"sts:Other": "x"}}"#,
                "sts:Other",
            ),
            (r#""Principal": {"Federated": "*"}, "Action": "sts:AssumeRole""#, "\"*\""),
            (
                r#""Principal": "*", "Action": "sts:AssumeRole",
                    "Condition": {"StringEquals": {"idp.example.com:sub": "x"}}"#,
                "idp.example.com:sub",
            ),
            (
                r#""Principal": "*", "Action": "sts:AssumeRoleWithWebIdentity",
                    "Condition": {"StringEquals": {"idp.example.com:admin": "x"}}"#,
                "idp.example.com:admin",
            ),
            (
                r#""Principal": "*", "Action": "sts:AssumeRole",
                    "Condition": {"StringEquals": {"s3:prefix": "x"}}"#,
                "s3:prefix",
            ),
        ] {
            let text = format!(r#"{{"Statement": {{"Effect": "Allow", {statement}}}}}"#);
            let error = Policy::trust(&text).expect_err("refused").to_string();
            assert!(error.contains(said), "{statement}: {error}");
        }
    }
}
