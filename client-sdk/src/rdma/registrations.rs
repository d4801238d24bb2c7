//! Registrations of callers' buffers, kept for the next transfer of the same buffer.
//!
//! Sketch: a registration pins pages, about 10 µs and up to milliseconds for large buffers; a
//! window over a registration that is kept costs none of that. Kept are whole buffers, and only
//! where the adapter holds windows to their own bounds; else each window gets a registration of
//! exactly its own memory, which ends with it.
//!
//! Registering for windows opens nothing to anybody. What is kept ends when its buffer does:
//! [`Registrations::sweep`] is called with every transfer, and by the session from time to time.

use std::sync::Arc;

use keyway_fabric::memory::BufferLife;
use keyway_fabric::verbs::{Access, Domain, Registration, VerbsError};
use parking_lot::Mutex;

use super::target::Target;

/// Buffers of one session that stay registered.
const KEPT_MAX: usize = 128;

/// The registrations of one session.
pub(super) struct Registrations {
    domain: Arc<Domain>,
    exact: bool,
    kept: Mutex<Vec<Kept>>,
}

struct Kept {
    registration: Arc<Registration>,
    life: BufferLife,
}

/// A registration on loan to a transfer; deregistered off the runtime's own threads.
pub(super) struct Held(Option<Arc<Registration>>);

impl Held {
    pub(super) fn registration(&self) -> &Arc<Registration> {
        self.0.as_ref().expect("the registration is there until the drop")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Only a last one is given back now; that unpins pages, which takes its time.
        release(self.0.take().into_iter().filter(|last| Arc::strong_count(last) == 1).collect());
    }
}

impl Registrations {
    /// None yet. `exact` says whether windows keep to their own bounds.
    pub(super) fn new(domain: &Arc<Domain>, exact: bool) -> Self {
        Self { domain: Arc::clone(domain), exact, kept: Mutex::default() }
    }

    /// A registration that windows over the target can be bound to.
    ///
    /// # Errors
    /// [`VerbsError`], for example when more memory would be pinned than is allowed.
    pub(super) async fn of(&self, target: &impl Target) -> Result<Held, VerbsError> {
        self.sweep();
        if !self.exact {
            return Ok(Held(Some(self.register(target.exact_anchor()?).await?)));
        }
        let (address, length) = (target.address(), target.length());
        let known = |kept: &&mut Kept| kept.registration.covers(address, length);
        if let Some(kept) = self.kept.lock().iter_mut().find(known) {
            return Ok(Held(Some(Arc::clone(&kept.registration))));
        }
        // Two transfers of a new buffer may both register it: one of them is swept with it.
        let registration = self.register(target.anchor()?).await?;
        let mut kept = self.kept.lock();
        let oldest = (kept.len() >= KEPT_MAX).then(|| kept.remove(0));
        kept.push(Kept { registration: Arc::clone(&registration), life: target.life() });
        drop(kept);
        release(oldest.into_iter().map(|kept| kept.registration).collect());
        Ok(Held(Some(registration)))
    }

    /// Gives up what nobody uses any more.
    pub(super) fn sweep(&self) {
        let mut kept = self.kept.lock();
        if kept.iter().any(|kept| kept.life.is_over()) {
            let over = kept.extract_if(.., |kept| kept.life.is_over());
            let over: Vec<_> = over.map(|kept| kept.registration).collect();
            drop(kept);
            release(over);
        }
    }

    async fn register(
        &self,
        memory: keyway_fabric::verbs::Anchor,
    ) -> Result<Arc<Registration>, VerbsError> {
        let domain = Arc::clone(&self.domain);
        let registered =
            tokio::task::spawn_blocking(move || domain.register(memory, Access::Windows)).await;
        // It ends without a result when the runtime ends.
        registered.unwrap_or(Err(VerbsError::Closed))
    }
}

/// Deregisters, off the runtime's own threads.
pub(super) fn release(registrations: Vec<Arc<Registration>>) {
    if registrations.is_empty() {
        return;
    }
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(move || drop(registrations))),
        Err(_) => drop(registrations),
    }
}
