//! Requests of one transfer, side by side.

use std::collections::VecDeque;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What became of each job that was begun, in the jobs' order, and the jobs that were not.
pub(super) type Ended<J, R, E> = (Vec<Result<R, E>>, VecDeque<J>);

/// Runs jobs, `concurrency` at a time. After one that fails no other begins, and `token` tells
/// those under way. A job that goes down with the runtime leaves no result.
pub(super) async fn run<J, R, E, F>(
    mut waiting: VecDeque<J>,
    concurrency: usize,
    token: &CancellationToken,
    mut begin: impl FnMut(J) -> F,
) -> Ended<J, R, E>
where
    F: Future<Output = Result<R, E>> + Send + 'static,
    R: Send + 'static,
    E: Send + 'static,
{
    let mut done: Vec<Option<Result<R, E>>> = waiting.iter().map(|_| None).collect();
    let mut running = JoinSet::new();
    loop {
        while running.len() < concurrency && !token.is_cancelled() {
            let index = done.len() - waiting.len();
            let Some(job) = waiting.pop_front() else { break };
            let job = begin(job);
            running.spawn(async move { (index, job.await) });
        }
        match running.join_next().await {
            None => break,
            Some(Ok((index, result))) => {
                if result.is_err() {
                    token.cancel();
                }
                done[index] = Some(result);
            }
            // A job ends without a result by a panic alone, which goes on where it belongs.
            Some(Err(error)) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => token.cancel(),
            },
        }
    }
    (done.into_iter().flatten().collect(), waiting)
}
