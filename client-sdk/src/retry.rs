//! How often, and after what pause, a request is made again.

use std::time::Duration;

use crate::error::{ClientError, RetryClass};

/// Bounds on retries. One request, or one part of a large transfer, has a budget of its own.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Attempts in all, the first included; at least 1.
    pub attempts_max: u32,
    /// The first pause is random up to this, and the bound doubles with every attempt.
    pub backoff_base: Duration,
    /// No pause is longer than this.
    pub backoff_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 5,
            backoff_base: Duration::from_millis(50),
            backoff_max: Duration::from_secs(5),
        }
    }
}

impl RetryPolicy {
    /// Never tries again.
    pub const NONE: Self =
        Self { attempts_max: 1, backoff_base: Duration::ZERO, backoff_max: Duration::ZERO };
}

/// The retries of one request.
pub(crate) struct Retries {
    policy: RetryPolicy,
    spent: u32,
}

impl Retries {
    pub(crate) fn new(policy: RetryPolicy) -> Self {
        Self { policy, spent: 0 }
    }

    /// Retries made so far.
    pub(crate) fn spent(&self) -> u32 {
        self.spent
    }

    /// Waits before the next attempt.
    ///
    /// # Errors
    /// `error` itself when it is final or the budget is spent.
    pub(crate) async fn after(&mut self, error: ClientError) -> Result<(), ClientError> {
        let class = error.class();
        if class == RetryClass::Never || self.spent + 1 >= self.policy.attempts_max {
            return Err(error);
        }
        let pause = self.pause(class);
        tracing::debug!(%error, ?pause, attempt = self.spent + 1, "will try again");
        self.spent += 1;
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Full jitter: uniformly random below a bound that doubles. Throttled requests wait at
    /// least half of it, so that a crowd of clients does back off.
    fn pause(&self, class: RetryClass) -> Duration {
        let doubled = self.policy.backoff_base.saturating_mul(1 << self.spent.min(16));
        let bound = doubled.min(self.policy.backoff_max);
        let floor = match class {
            RetryClass::Throttling => 0.5,
            RetryClass::Transient | RetryClass::Never => 0.0,
        };
        bound.mul_f64(floor + (1.0 - floor) * fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_bounded() {
        let policy = RetryPolicy::default();
        for spent in 0..40 {
            let retries = Retries { policy, spent };
            let bound = policy.backoff_base.saturating_mul(1 << spent.min(16));
            let bound = bound.min(policy.backoff_max);
            for _ in 0..50 {
                assert!(retries.pause(RetryClass::Transient) <= bound);
                let throttled = retries.pause(RetryClass::Throttling);
                assert!(bound / 2 <= throttled && throttled <= bound);
            }
        }
    }

    #[tokio::test]
    async fn the_budget_is_kept() {
        let policy = RetryPolicy { attempts_max: 3, ..RetryPolicy::NONE };
        let mut retries = Retries::new(policy);
        let broken = || ClientError::BrokenBody { expected: 2, received: 1 };
        assert!(retries.after(broken()).await.is_ok());
        assert!(retries.after(broken()).await.is_ok());
        assert!(retries.after(broken()).await.is_err());
        assert_eq!(retries.spent(), 2);
        assert!(Retries::new(policy).after(ClientError::Changed).await.is_err());
    }
}
