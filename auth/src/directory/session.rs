//! Who signs with temporary credentials.

use std::sync::Arc;

use jiff::Timestamp;

use super::{Directory, Provider, Refused, Role, Standing};
use crate::credential::{AccessKeyId, Identity, Principal};
use crate::policy::{Caller, Policy};
use crate::session::{Assumed, Claims, Link, Origin, Source, WebIdentity};

impl Directory {
    /// Who signs with temporary credentials, whose token was opened. `source` is who signs with
    /// the access key that the claims go back to, now; none where they go back to none.
    ///
    /// # Errors
    /// [`Refused`], where that key has another holder, where the provider does not vouch any more,
    /// or where role or session were ended.
    pub fn session(
        &self,
        access_key: AccessKeyId,
        claims: Arc<Claims>,
        source: Option<&Principal>,
    ) -> Result<Principal, Refused> {
        let issuer = match &claims.source {
            Origin::Key(named) => {
                self.require_holder(named, source, claims.issued)?;
                None
            }
            Origin::Web(identity) => Some(self.require_provider(identity)?.issuer.clone()),
        };
        for link in &claims.links() {
            self.require_role(link)?;
        }
        let Some(assumed) = &claims.role else {
            // A web identity is nobody here but in a role.
            let source = source.filter(|_| claims.source.key().is_some());
            let source = source.ok_or(Refused::Unknown)?.clone();
            return Ok(Principal { access_key, claims: Some(claims), ..source });
        };
        let role = self.role(assumed.tenant, &assumed.name).ok_or(Refused::Unknown)?;
        let identity = Arc::new(Identity { issuer, ..self.assumed(role, assumed)? });
        let (tenant, user) = (assumed.tenant, assumed.name.shared());
        Ok(Principal { tenant, user, access_key, identity, claims: Some(claims) })
    }

    /// Whether an access key is still the same somebody's, whose sessions were not ended.
    fn require_holder(
        &self,
        named: &Source,
        source: Option<&Principal>,
        issued: Timestamp,
    ) -> Result<(), Refused> {
        let source = source.ok_or(Refused::Unknown)?;
        if source.tenant != named.tenant || source.identity.caller.id() != named.holder {
            return Err(Refused::Unknown);
        }
        // The root's configured key is not here, and the tenant itself is no user.
        let key = self.keys.get(named.key.as_str());
        let user = key.and_then(|key| self.user(key.record.tenant, key.record.user.as_ref()?));
        user.map_or(Ok(()), |user| require_begun_after(user.sessions_valid_from, issued))
    }

    /// Whether the provider that vouched for somebody is still there, and for that audience.
    fn require_provider(&self, identity: &WebIdentity) -> Result<&Provider, Refused> {
        self.require_active(identity.tenant)?;
        let provider = self.provider(identity.tenant, &identity.provider);
        let provider = provider.filter(|provider| provider.id == identity.id);
        let provider = provider.ok_or(Refused::Unknown)?;
        let meant = provider.audiences.contains(&identity.audience);
        if meant { Ok(provider) } else { Err(Refused::Revoked) }
    }

    /// Whether a session of a role still stands.
    fn require_role(&self, link: &Link) -> Result<(), Refused> {
        let role = self.role(link.tenant, &link.name).ok_or(Refused::Unknown)?;
        if role.record.id != link.id {
            return Err(Refused::Unknown);
        }
        self.require_active(link.tenant)?;
        if role.record.state == Standing::Suspended {
            return Err(Refused::RoleSuspended);
        }
        require_begun_after(role.record.sessions_valid_from, link.issued)
    }

    /// A session of a role, as policies see it.
    fn assumed(&self, role: &Role, assumed: &Assumed) -> Result<Identity, Refused> {
        let record = &role.record;
        let (tenant, name) = (record.tenant, record.name.as_str());
        let caller = Caller::session(tenant, name, &assumed.session, &record.id);
        let mut identity = Identity::of(caller);
        identity.policies = self.parsed(tenant, &record.policies);
        identity.tags.clone_from(&record.tags);
        if let Some(text) = &assumed.policy {
            // It was well-formed when the session was begun; what is not now must not widen it.
            let policy = Policy::session(text).map_err(|_| Refused::Unknown)?;
            identity.session = vec![Arc::new(policy)];
        }
        Ok(identity)
    }
}

fn require_begun_after(ended: Option<Timestamp>, issued: Timestamp) -> Result<(), Refused> {
    match ended {
        Some(ended) if issued <= ended => Err(Refused::Revoked),
        _ => Ok(()),
    }
}
