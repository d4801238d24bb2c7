//! A caller, and the questions to policies on its behalf.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use jiff::Timestamp;
use keyway_auth::policy::{
    Action, Context, Decision, DeniedBy, Key, On, Policies, Policy, PublicAccessBlock, Resource,
    evaluate, may_assume,
};
use keyway_auth::{Identity, Principal, policy};
use keyway_meta::{Bucket, CatalogError, StoredBy};
use keyway_proto::{BucketName, SessionOwner, TenantId};

use super::request::Request;
use super::rules::Rules;
use super::way::Way;
use super::{Core, denied};
use crate::audit::{self, Audit, Event};
use crate::limits::Usage;
use crate::s3::errors::Failure;

static NOBODY: LazyLock<Identity> = LazyLock::new(|| Identity::of(policy::Caller::anonymous()));

/// Who asks, whose buckets its names mean, and what is known of its request.
pub(in crate::s3) struct Caller {
    /// The tenant whose buckets the request's names mean: the caller's own, or the one that it
    /// names as their owner.
    pub(in crate::s3) tenant: TenantId,
    /// The same for what it copies from.
    pub(in crate::s3) source_tenant: TenantId,
    /// Who signed; nobody for a request without a signature.
    pub(in crate::s3) principal: Option<Principal>,
    /// What conditions see of it, over HTTP.
    pub(super) context: Context<'static>,
    /// What it may take.
    pub(in crate::s3) usage: Usage,
    /// The ways that the bytes may take: several where the node alone knows.
    pub(super) ways: Vec<Way>,
    /// Whether a policy forbids that the bytes take them.
    direct_forbidden: bool,
    now: Timestamp,
    rules: Option<Rules>,
    source_rules: Option<Rules>,
    pub(super) audit: Audit,
    request: audit::Request,
    /// What was allowed for a way other than HTTP.
    asked: Vec<(Action, Resource)>,
}

/// May this be done to that?
pub(super) struct Question<'a> {
    pub(super) action: Action,
    pub(super) resource: &'a Resource,
    /// The tenant that owns the bucket; none for a question about the caller's own tenant.
    pub(super) owner: Option<TenantId>,
    /// The bucket's rules, if it is there.
    pub(super) rules: Option<&'a Rules>,
}

impl Caller {
    pub(super) fn new(
        principal: Option<Principal>,
        tenant: TenantId,
        source_tenant: TenantId,
        now: Timestamp,
        audit: Audit,
        request: audit::Request,
    ) -> Self {
        let mut context = Context::new();
        Way::HTTP.tell(&mut context);
        Self {
            audit,
            request,
            tenant,
            source_tenant,
            principal,
            context,
            usage: Usage::default(),
            ways: vec![Way::HTTP],
            direct_forbidden: false,
            now,
            rules: None,
            source_rules: None,
            asked: Vec::new(),
        }
    }

    /// What policies know of the caller.
    pub(super) fn identity(&self) -> &Identity {
        self.principal.as_ref().map_or(&NOBODY, |principal| &principal.identity)
    }

    /// The caller's own tenant; none for nobody.
    pub(in crate::s3) fn own_tenant(&self) -> Option<TenantId> {
        self.principal.as_ref().map(|principal| principal.tenant)
    }

    /// The tenant in whose bounds the work counts: the caller's own, and the owner's for nobody.
    pub(in crate::s3) fn account(&self) -> TenantId {
        self.own_tenant().unwrap_or(self.tenant)
    }

    /// Who stores what it writes there, for usage to be counted: a user of the bucket's owner.
    pub(in crate::s3) fn storing_in(&self, bucket: &Bucket) -> Option<StoredBy> {
        let principal = self.principal.as_ref()?;
        let is_own = principal.tenant == bucket.tenant && principal.identity.caller.is_user();
        is_own.then(|| Arc::clone(&principal.user))
    }

    /// Who it is, in the audit log: the ARN.
    pub(in crate::s3) fn name(&self) -> String {
        self.identity().caller.to_string()
    }

    /// The access key that signed; nobody has one.
    pub(in crate::s3) fn access_key(&self) -> Option<String> {
        self.principal.as_ref().map(|principal| principal.access_key.to_string())
    }

    /// The request, in the audit log.
    pub(in crate::s3) fn request(&self) -> audit::Request {
        self.request.clone()
    }

    /// When it asks.
    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// Whose sessions the caller may use; nobody has any.
    pub(in crate::s3) fn session_owner(&self) -> Option<SessionOwner> {
        let principal = self.principal.as_ref()?;
        let access_key = principal.access_key.as_str().into();
        Some(SessionOwner { tenant: principal.tenant, access_key })
    }

    /// Whether policies forbid that this request's bytes travel past HTTP.
    pub(in crate::s3) fn direct_is_forbidden(&self) -> bool {
        self.direct_forbidden
    }

    /// Reads the rules of the buckets that the request names.
    pub(super) async fn look_around(
        &mut self,
        core: &Core,
        request: &Request,
    ) -> Result<(), Failure> {
        if let Some(bucket) = &request.bucket {
            self.rules = core.rules.of(core, self.tenant, bucket).await?;
        }
        if let Some((bucket, _)) = &request.source {
            self.source_rules = core.rules.of(core, self.source_tenant, bucket).await?;
        }
        Ok(())
    }

    /// A bucket whose rules were read.
    pub(in crate::s3) fn entered(&self, tenant: TenantId, name: &BucketName) -> Option<&Bucket> {
        let read = self.rules.iter().chain(&self.source_rules).map(|rules| &rules.bucket);
        read.into_iter().find(|bucket| bucket.tenant == tenant && bucket.name == *name)
    }

    /// Decides by which way the bytes are to go: past HTTP where the token's session is known
    /// and no policy forbids that.
    pub(super) fn take_way(&mut self, core: &Core, request: &Request) {
        let (Some(token), Some(gate)) = (request.token, request.gate) else { return };
        self.ways = core.sessions.ways(token);
        let question = self.on_bucket(gate, &request.resource);
        if self.ways.iter().all(|way| self.would(&question, way)) {
            return;
        }
        self.ways = vec![Way::HTTP];
        self.direct_forbidden = true;
    }

    fn on_bucket<'a>(&'a self, action: Action, resource: &'a Resource) -> Question<'a> {
        let (owner, rules) = (Some(self.tenant), self.rules.as_ref());
        Question { action, resource, owner, rules }
    }

    /// Asks for all that the request needs.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(super) fn admit(&mut self, request: &Request) -> Result<(), Failure> {
        let Some(needs) = &request.needs else {
            // An operation that nobody has heard of is not there either; the root hears so.
            let home = self.own_tenant() == Some(self.tenant);
            let root = self.identity().caller.is_root();
            return if home && root { Ok(()) } else { Err(denied()) };
        };
        // One's buckets are made, and listed, by oneself.
        if request.own && self.own_tenant() != Some(self.tenant) {
            return Err(denied());
        }
        for need in needs {
            let source = request.source.as_ref().map(|(_, resource)| resource);
            let question = match need.on {
                On::Account => Question {
                    action: need.action,
                    resource: &request.resource,
                    owner: None,
                    rules: None,
                },
                On::Source => Question {
                    action: need.action,
                    resource: source.ok_or_else(denied)?,
                    owner: Some(self.source_tenant),
                    rules: self.source_rules.as_ref(),
                },
                On::Bucket | On::Object => self.on_bucket(need.action, &request.resource),
            };
            self.may(&question)?;
            if self.ways != [Way::HTTP] && need.on == On::Object {
                self.asked.push((need.action, request.resource.clone()));
            }
        }
        Ok(())
    }

    /// The bytes go over HTTP after all, though they were to go another way: may they?
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(in crate::s3) fn may_over_http(&self) -> Result<(), Failure> {
        for (action, resource) in &self.asked {
            self.decide(&self.on_bucket(*action, resource), &Way::HTTP)?;
        }
        Ok(())
    }

    /// Asks whether something may be done to the request's bucket, or to a key in it.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(in crate::s3) fn may_here(
        &self,
        action: Action,
        resource: &Resource,
    ) -> Result<(), Failure> {
        self.may(&self.on_bucket(action, resource))
    }

    /// Asks whether a bucket may be made in this region.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(in crate::s3) fn may_create(
        &self,
        bucket: &str,
        region: Option<&str>,
    ) -> Result<(), Failure> {
        let mut context = self.context.clone();
        if let Some(region) = region {
            context.set(Key::LocationConstraint, region.to_owned());
        }
        let resource = &Resource::bucket(bucket);
        let action = Action::CreateBucket;
        let question = Question { action, resource, owner: None, rules: None };
        self.decide_in(&question, &context)
    }

    /// Reads the rules of a bucket that a document names.
    ///
    /// # Errors
    /// `NoSuchBucket`, `InvalidBucketName` to whom the names of the tenant's buckets are open;
    /// else `AccessDenied`.
    pub(in crate::s3) async fn enter(&self, core: &Core, bucket: &str) -> Result<Rules, Failure> {
        match core.rules.of(core, self.tenant, bucket).await? {
            Some(rules) => Ok(rules),
            None => {
                let resource = &Resource::bucket(bucket);
                self.may(&self.on_bucket(Action::ListBucket, resource))?;
                bucket.parse::<BucketName>()?;
                Err(CatalogError::NoSuchBucket.into())
            }
        }
    }

    /// Asks whether something may be done to a key of a bucket that was
    /// [`enter`](Self::enter)ed.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(in crate::s3) fn may_in(
        &self,
        rules: &Rules,
        action: Action,
        resource: &Resource,
    ) -> Result<(), Failure> {
        let (owner, rules) = (Some(rules.bucket.tenant), Some(rules));
        self.may(&Question { action, resource, owner, rules })
    }

    /// As [`may_in`](Self::may_in), with one more value known.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(in crate::s3) fn may_list_in(&self, rules: &Rules, prefix: &str) -> Result<(), Failure> {
        let mut context = self.context.clone();
        context.set(Key::Prefix, prefix.to_owned());
        let resource = &Resource::bucket(&rules.bucket.name);
        let (owner, rules) = (Some(rules.bucket.tenant), Some(rules));
        let question = Question { action: Action::ListBucket, resource, owner, rules };
        self.decide_in(&question, &context)
    }

    /// Asks whether something may be done to the caller's own tenant.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(in crate::s3) fn may_in_tenant(&self, action: Action) -> Result<(), Failure> {
        // A header that names another's buckets does not make their tenant one's own.
        if self.own_tenant() != Some(self.tenant) {
            return Err(denied());
        }
        let resource = &Resource::account();
        self.may(&Question { action, resource, owner: None, rules: None })
    }

    /// Asks whether a role may be taken: for a session of this name, with this external id. Where
    /// there is no such role, nobody trusts the caller.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(in crate::s3) fn may_assume(
        &self,
        resource: &Resource,
        owner: TenantId,
        trust: Option<&Policy>,
        session_name: &str,
        external_id: Option<&str>,
    ) -> Result<(), Failure> {
        let mut context = self.context.clone();
        context.set(Key::RoleSessionName, session_name.to_owned());
        if let Some(id) = external_id {
            context.set(Key::ExternalId, id.to_owned());
        }
        let identity = self.identity();
        let (caller, action, now) = (&identity.caller, Action::AssumeRole, self.now);
        let owner = Some(owner);
        let request = policy::Request { caller, action, resource, owner, now, context: &context };
        let (identity, session) = (&*identity.policies, &*identity.session);
        let policies = Policies { identity, session, ..Policies::default() };
        let decision = match trust {
            Some(trust) => may_assume(&request, trust, &policies),
            None => Decision::Deny(DeniedBy::NoTrustPolicy),
        };
        match decision {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(by) => Err(self.told(action, resource.to_string(), by.to_string())),
        }
    }

    /// Asks, for every way that the bytes may take.
    ///
    /// # Errors
    /// `AccessDenied`.
    fn may(&self, question: &Question<'_>) -> Result<(), Failure> {
        self.ways.iter().try_for_each(|way| self.decide(question, way))
    }

    /// Whether a policy, if it were the bucket's, would deny the caller this in so many words.
    pub(in crate::s3) fn would_deny(
        &self,
        action: Action,
        resource: &Resource,
        policy: &Policy,
    ) -> bool {
        let request = policy::Request {
            caller: &self.identity().caller,
            action,
            resource,
            owner: Some(self.tenant),
            now: self.now,
            context: &self.context,
        };
        let policies = Policies { bucket: Some(policy), ..Policies::default() };
        evaluate(&request, &policies).is_explicit_deny()
    }

    /// Whether the caller may list the bucket.
    fn lists(&self, rules: &Rules) -> bool {
        let resource = &Resource::bucket(&rules.bucket.name);
        let (owner, rules) = (Some(rules.bucket.tenant), Some(rules));
        let question = Question { action: Action::ListBucket, resource, owner, rules };
        self.would(&question, &Way::HTTP)
    }

    /// Whether it would be allowed: nobody has asked.
    fn would(&self, question: &Question<'_>, way: &Way) -> bool {
        self.verdict(question, &self.context_of(way)).is_ok()
    }

    fn decide(&self, question: &Question<'_>, way: &Way) -> Result<(), Failure> {
        self.decide_in(question, &self.context_of(way))
    }

    fn context_of(&self, way: &Way) -> Cow<'_, Context<'static>> {
        let mut context = Cow::Borrowed(&self.context);
        if *way != Way::HTTP {
            way.tell(context.to_mut());
        }
        context
    }

    fn decide_in(
        &self,
        question: &Question<'_>,
        context: &Context<'static>,
    ) -> Result<(), Failure> {
        self.verdict(question, context).map_err(|reason| {
            self.told(question.action, question.resource.as_str().to_owned(), reason)
        })
    }

    /// Tells the audit log of a denial.
    fn told(&self, action: Action, resource: String, reason: String) -> Failure {
        self.audit.tell(Event::Denied {
            caller: self.name(),
            access_key: self.access_key(),
            action: action.name(),
            resource,
            reason,
            request: self.request.clone(),
        });
        denied()
    }

    /// The decision; where it is a denial, what denied.
    fn verdict(&self, question: &Question<'_>, context: &Context<'static>) -> Result<(), String> {
        let identity = self.identity();
        let request = policy::Request {
            caller: &identity.caller,
            action: question.action,
            resource: question.resource,
            owner: question.owner,
            now: self.now,
            context,
        };
        let policies = Policies {
            identity: &identity.policies,
            session: &identity.session,
            bucket: question.rules.and_then(|rules| rules.policy.as_deref()),
            block: question.rules.map_or_else(PublicAccessBlock::default, |rules| rules.block),
        };
        match evaluate(&request, &policies) {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(by) => Err(by.to_string()),
        }
    }
}

/// What is told of a failure in a bucket that was entered: that a key is not there only to who may
/// list it.
pub(in crate::s3) fn unlisted(caller: &Caller, rules: &Rules, failure: Failure) -> Failure {
    let missing = matches!(&failure, Failure::Catalog(CatalogError::NoSuchKey));
    if missing && !caller.lists(rules) { denied() } else { failure }
}

/// What is told of a failure: that a key is not there only to who may list the bucket.
pub(in crate::s3) fn hidden(caller: Option<&Arc<Caller>>, failure: Failure) -> Failure {
    let Failure::Catalog(CatalogError::NoSuchKey) = &failure else { return failure };
    let Some(caller) = caller else { return failure };
    let mut rules = caller.rules.iter().chain(&caller.source_rules);
    if rules.all(|rules| caller.lists(rules)) { failure } else { denied() }
}
