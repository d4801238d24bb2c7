//! One body on its way, however often it takes: out of memory that a node reads, or over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::{FutureExt as _, ready};
use keyway_proto::key::Direction;
use keyway_proto::{Checksum, Durability};
use tokio::task::JoinHandle;

use super::put::{ask, confirmed, told};
use super::source::{Body, Run, checksum};
use super::{Meter, Stop, Unverified, Verified, checks};
use crate::error::{ClientError, Malformed};
use crate::http::{Answer, BodyProgress, Call, Client};
use crate::rdma::{
    FAILURES_MAX, Fallback, Fallbacks, Moved, Order, Outcome, Rdma, Reach, Reply, Settled, Target,
    Ticket, Travelled, transact,
};

const CRC64NVME: &str = "x-amz-checksum-crc64nvme";

/// What the answer to a body says.
pub(super) struct Sent {
    pub(super) etag: Option<String>,
    pub(super) version: Option<String>,
    /// The CRC64NVME of the bytes, as they lie here.
    pub(super) sum: Checksum,
    pub(super) verified: Verified,
    pub(super) retries: u32,
    pub(super) travelled: Travelled,
    pub(super) durability: Durability,
}

/// Sends a run as the body of `call` until it is answered for good.
///
/// Dropping the future gives it up; memory that a node reads is free when its key is dead.
pub(super) async fn send(
    client: &Client,
    call: Call,
    run: &Run<'_>,
    durability: Durability,
    meter: &Meter,
) -> Result<Sent, ClientError> {
    match run.staged(client).await? {
        // The bounce buffer is held until the copy in it was sent.
        Some((copy, _bounce)) => send_run(client, call, &copy.whole(), durability, meter).await,
        None => send_run(client, call, run, durability, meter).await,
    }
}

async fn send_run(
    client: &Client,
    mut call: Call,
    run: &Run<'_>,
    durability: Durability,
    meter: &Meter,
) -> Result<Sent, ClientError> {
    ask(&mut call, durability)?;
    let rdma = client.rdma();
    let mut fallbacks = Fallbacks::default();
    let ticket = if rdma.is_wanted(run.length) {
        match Box::pin(rdma.ticket(None, run.length, run.reach(rdma.shares()))).await {
            Ok(ticket) => Some(ticket),
            Err(reason) => {
                rdma.fall_back(reason, &mut fallbacks)?;
                None
            }
        }
    } else {
        None
    };
    let body = match &ticket {
        Some(_) => run.lendable(rdma.shares()).await?,
        None => run.body().await?,
    };
    let mut sending =
        Sending { client, call, sum: None, meter, fallbacks, retries: client.retries() };
    match (body, ticket) {
        (Body::Device(slice), Some(ticket)) => {
            // The node digests the same memory before it answers from its own: the client's
            // digest need not come first.
            if durability == Durability::Disk || !ticket.is_local() {
                sending.declare(slice.clone()).await?;
            }
            Box::pin(sending.lend(slice, ticket)).await
        }
        (Body::Lent(memory), Some(ticket)) => {
            sending.declare(memory.clone()).await?;
            Box::pin(sending.lend(memory, ticket)).await
        }
        (body, _) => sending.over_http(body).await,
    }
}

/// What became of a task.
pub(super) async fn ended<T>(task: JoinHandle<Result<T, ClientError>>) -> Result<T, ClientError> {
    match task.await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends.
            Err(_) => Err(ClientError::GivenUp),
        },
    }
}

struct Sending<'a> {
    client: &'a Client,
    call: Call,
    /// Of the body, once it is known.
    sum: Option<Checksum>,
    meter: &'a Meter,
    fallbacks: Fallbacks,
    retries: crate::retry::Retries,
}

/// What an attempt by RDMA led to.
enum Lent {
    Done(Box<Answer>, Travelled, Checksum),
    /// It has to go over HTTP.
    Over(Fallback),
    /// The service does not know the session.
    Closed,
    /// Nothing is known to be stored; whether it was RDMA that failed.
    Failed(ClientError, bool),
}

impl Sending<'_> {
    /// Has a node read the memory, until it did, or it has to go over HTTP after all.
    async fn lend<M: Target + Clone + Into<Body>>(
        mut self,
        memory: M,
        ticket: Ticket,
    ) -> Result<Sent, ClientError> {
        let rdma = self.client.rdma();
        let (mut failures, mut has_reopened) = (0, false);
        let mut ticket = Ok(ticket);
        let reason = loop {
            let held = match ticket {
                Ok(held) => held,
                Err(reason) => break reason,
            };
            match self.attempt(memory.clone(), held).await? {
                Lent::Done(answer, travelled, sum) => {
                    return self.sent(&answer, travelled, sum);
                }
                Lent::Over(reason) => break reason,
                Lent::Closed if has_reopened => break Fallback::NoSession,
                Lent::Closed => has_reopened = true,
                Lent::Failed(error, is_of_path) => {
                    self.retries.after(error).await?;
                    failures += u32::from(is_of_path);
                    if failures >= FAILURES_MAX && !rdma.is_required() {
                        break Fallback::Failed;
                    }
                }
            }
            ticket = rdma.ticket(None, memory.length() as u64, Reach::of(&memory)).await;
        };
        rdma.fall_back(reason, &mut self.fallbacks)?;
        self.over_http(memory.into()).await
    }

    async fn attempt<M: Target + Clone>(
        &mut self,
        memory: M,
        ticket: Ticket,
    ) -> Result<Lent, ClientError> {
        // A task of its own: asking a GPU must not hold the request up.
        let sum = match self.sum {
            Some(sum) => ready(Ok(sum)).left_future(),
            None => {
                let of = memory.clone();
                ended(tokio::spawn(checksum(of))).right_future()
            }
        };
        let rdma = self.client.rdma();
        let order = Order {
            ticket,
            wire: Arc::clone(rdma.wire()),
            call: self.call.clone(),
            memory,
            direction: Direction::Read,
            answer_timeout: rdma.answer_timeout(),
            turn: None,
        };
        let Settled { memory, ticket, outcome, marks } = transact(order, &Stop::default()).await;
        let lent = match outcome {
            Outcome::Moved(answer, moved) => {
                let sum = sum.await?;
                self.sum = Some(sum);
                verify(&moved, memory.length() as u64, sum)?;
                rdma.moved(&ticket, moved.bytes, &marks);
                let travelled = Travelled::past_http::<M>(&ticket, self.fallbacks);
                self.meter.add(moved.bytes);
                Lent::Done(Box::new(answer), travelled, sum)
            }
            Outcome::Answered(answer) => self.answered(answer, &ticket).await?,
            Outcome::Failed(error) => {
                let is_of_path = rdma.failed(&ticket, &error);
                match Rdma::hopeless(&error) {
                    Some(reason) if !rdma.is_required() => Lent::Over(reason),
                    _ => Lent::Failed(error, is_of_path),
                }
            }
        };
        Ok(lent)
    }

    /// Puts the checksum of a body into its request.
    async fn declare(&mut self, memory: impl Target) -> Result<(), ClientError> {
        self.declared(checksum(memory).await?)
    }

    fn declared(&mut self, sum: Checksum) -> Result<(), ClientError> {
        self.sum = Some(sum);
        self.call.header(CRC64NVME, &sum.to_base64())
    }

    /// An answer by which nothing was read out of the memory.
    async fn answered(&self, mut answer: Answer, ticket: &Ticket) -> Result<Lent, ClientError> {
        let reply = Reply::of(answer.status(), answer.headers());
        if let Reply::Declined(_) = reply {
            return Ok(Lent::Over(Fallback::Declined));
        }
        if answer.status().is_success() {
            // A service that does not know tokens has stored an empty body.
            return Err(ClientError::TokenIgnored);
        }
        let error = answer.read_error(&self.call.method).await;
        // Throttling and the like have nothing to do with the path.
        let is_of_path = self.client.rdma().failed(ticket, &error);
        Ok(match error.code() {
            Some("InvalidRDMAToken") => Lent::Closed,
            Some("RDMANotSupported") => Lent::Over(Fallback::Declined),
            _ => Lent::Failed(error, is_of_path),
        })
    }

    /// Sends it in the request's body; bytes sent again are counted once. Where it may be the
    /// checksum that is refused, they are sent with one that every service knows.
    async fn over_http(mut self, body: Body) -> Result<Sent, ClientError> {
        let sum = match self.sum {
            Some(sum) => sum,
            None => body.checksum().await?,
        };
        self.call.body = body.into_call(self.client.staging()).await?;
        let checks = self.client.checks();
        let mut with_crc64nvme = checks.send_crc64nvme();
        let (mut md5, mut refusals) = (None, 0);
        loop {
            if with_crc64nvme {
                self.declared(sum)?;
            } else {
                self.call.headers.remove(CRC64NVME);
            }
            if md5.is_none() && (!with_crc64nvme || checks.send_md5()) {
                let sum = checks::md5(&self.call.body).await?;
                self.call.header("content-md5", &sum.to_base64())?;
                md5 = Some(sum);
            }
            let counted = Arc::new(AtomicU64::new(0));
            if !self.meter.is_silent() {
                let (meter, counted) = (self.meter.clone(), Arc::clone(&counted));
                self.call.progress = Some(Arc::new(move |bytes| {
                    counted.fetch_add(bytes, Ordering::Relaxed);
                    meter.add(bytes);
                }) as BodyProgress);
            }
            match self.client.attempt(&self.call).await {
                Ok(answer) => {
                    checks.answered(with_crc64nvme, answer.text(CRC64NVME).is_some());
                    let travelled = Travelled::over_http(self.fallbacks);
                    let mut sent = self.sent(&answer, travelled, sum)?;
                    sent.retries += refusals;
                    if sent.verified == Verified::No(Unverified::NoneStored) {
                        sent.verified = self.by_etag(sent.etag.as_deref(), md5).await?;
                    }
                    return Ok(sent);
                }
                Err(error) => {
                    self.meter.take_back(counted.load(Ordering::Relaxed));
                    if with_crc64nvme && checks.may_blame(&error) {
                        tracing::debug!(%error, "will try without a CRC64NVME");
                        (with_crc64nvme, refusals) = (false, 1);
                        continue;
                    }
                    self.retries.after(error).await?;
                }
            }
        }
    }

    /// Holds the bytes' MD5 against the ETag of a service that repeats no checksum.
    async fn by_etag(
        &self,
        etag: Option<&str>,
        md5: Option<Checksum>,
    ) -> Result<Verified, ClientError> {
        let md5 = match md5 {
            Some(md5) => md5,
            None => checks::md5(&self.call.body).await?,
        };
        Ok(match etag {
            Some(etag) if checks::is_etag(&md5, etag) => Verified::Whole(md5),
            _ => Verified::No(Unverified::NoneStored),
        })
    }

    fn sent(
        &self,
        answer: &Answer,
        travelled: Travelled,
        sum: Checksum,
    ) -> Result<Sent, ClientError> {
        let text = |name| answer.text(name).map(ToOwned::to_owned);
        Ok(Sent {
            etag: text("etag"),
            version: text("x-amz-version-id"),
            sum,
            verified: confirmed(sum, answer.text(CRC64NVME))?,
            retries: self.retries.spent(),
            travelled,
            durability: told(answer),
        })
    }
}

/// Holds what the node read against what was lent.
fn verify(moved: &Moved, length: u64, sum: Checksum) -> Result<(), ClientError> {
    if moved.bytes != length {
        return Err(Malformed::new("other bytes than were lent were read").into());
    }
    if moved.crc64nvme != sum {
        return Err(ClientError::ChecksumMismatch { expected: sum, found: moved.crc64nvme });
    }
    Ok(())
}
