//! Goal: who may do what, against the real binary: what policies allow is done, nothing else is,
//! and whoever is cut off stays out.
//!
//! Method: a server, two tenants with users and keys made through the administration, requests
//! signed by hand. The attacks are those of somebody who holds a key of their own, or had one.

#[path = "tenants/accounts.rs"]
mod accounts;
#[path = "tenants/attacks.rs"]
mod attacks;
#[path = "tenants/audit.rs"]
mod audit;
#[path = "tenants/buckets.rs"]
mod buckets;
#[path = "tenants/crowds.rs"]
mod crowds;
#[path = "tenants/cutoff.rs"]
mod cutoff;
#[path = "tenants/fairness.rs"]
mod fairness;
#[path = "tenants/form_attacks.rs"]
mod form_attacks;
#[path = "tenants/forms.rs"]
mod forms;
#[path = "tenants/idp.rs"]
mod idp;
#[path = "tenants/limits.rs"]
mod limits;
#[path = "tenants/policies.rs"]
mod policies;
#[path = "tenants/quota.rs"]
mod quota;
#[path = "tenants/roles.rs"]
mod roles;
#[path = "tenants/schema.rs"]
mod schema;
#[path = "tenants/strangers.rs"]
mod strangers;
#[path = "tenants/temporary.rs"]
mod temporary;
#[path = "tenants/tokens.rs"]
mod tokens;
#[path = "tenants/verify.rs"]
mod verify;
#[path = "tenants/web.rs"]
mod web;
#[path = "tenants/web_identity.rs"]
mod web_identity;
#[path = "tenants/web_tokens.rs"]
mod web_tokens;
#[path = "tenants/world.rs"]
mod world;
