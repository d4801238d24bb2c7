//! When a transfer gives up although it could go on.

use std::future::Future;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::error::ClientError;

/// The caller's patience, and another's word.
#[derive(Clone, Default)]
pub(crate) struct Stop {
    pub(crate) deadline: Option<Instant>,
    pub(crate) token: Option<CancellationToken>,
}

impl Stop {
    /// Runs a future unless it is time to stop. The future borrows the memory, so the memory
    /// is free again once this returns.
    pub(crate) async fn or<T>(
        &self,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        tokio::select! {
            biased;
            result = work => result,
            error = self.reached() => Err(error),
        }
    }

    /// Waits until it is time to stop, and says why: [`ClientError::Deadline`] or
    /// [`ClientError::GivenUp`].
    pub(crate) async fn reached(&self) -> ClientError {
        let given_up = async {
            match &self.token {
                Some(token) => token.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let late = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = late => ClientError::Deadline,
            () = given_up => ClientError::GivenUp,
        }
    }
}
