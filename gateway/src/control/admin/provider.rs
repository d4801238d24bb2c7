//! OpenID Connect providers.

use keyway_auth::directory::{Change, Name, Provider, is_audience, provider_id};
use keyway_auth::oidc::Issuer;
use keyway_proto::TenantId;

use super::change::status;
use super::document::{ProviderDocument, ProviderSettings};
use super::error::AdminError;
use super::{AdminAnswer, Administration, answered};
use crate::oidc::authorities;

/// Most bytes of authorities.
const CA_BYTES_MAX: usize = 16 << 10;

impl Administration {
    pub(super) async fn put_provider(
        &self,
        tenant: TenantId,
        name: &Name,
        settings: ProviderSettings,
    ) -> Result<AdminAnswer, AdminError> {
        let issuer: Issuer = settings.issuer.parse()?;
        if !settings.audiences.iter().all(|audience| is_audience(audience)) {
            return Err(AdminError::OutOfBounds("audiences"));
        }
        if let Some(pem) = &settings.ca_pem {
            if pem.len() > CA_BYTES_MAX {
                return Err(AdminError::OutOfBounds("ca_pem"));
            }
            authorities(pem)?;
        }
        let now = self.accounts.now();
        let mut told = None;
        let cut = self
            .accounts
            .change(|directory| {
                let known = directory.provider(tenant, name);
                // Whoever the issuer before vouched for is nobody to this one.
                let same_issuer = known.filter(|known| known.issuer == issuer);
                let provider = Provider {
                    tenant,
                    name: name.clone(),
                    id: same_issuer.map_or_else(provider_id, |known| known.id.clone()),
                    created: known.map_or(now, |known| known.created),
                    issuer,
                    audiences: settings.audiences,
                    ca_pem: settings.ca_pem,
                };
                told = Some((status(known.is_none()), ProviderDocument::from(&provider)));
                let same = known.is_some_and(|known| **known == provider);
                Ok::<_, AdminError>((!same).then_some(Change::PutProvider(provider)))
            })
            .await?;
        let (status, document) = told.ok_or(AdminError::Interrupted)?;
        answered(status, &document, cut)
    }
}
