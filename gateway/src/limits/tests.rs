//! Goal: strangers are slowed down and nobody else is; nobody takes more than they may. Method:
//! the time is told, so that no test waits for it but one.

use std::num::{NonZeroU32, NonZeroU64};

use super::*;

const SECOND_NS: u64 = 1_000_000_000;
const CODE: &str = "SignatureDoesNotMatch";

fn strangers() -> Strangers {
    Strangers::new(&Auth {
        failures_burst: 5,
        failures_per_second: NonZeroU32::MIN,
        penalty_ms: 10_000,
    })
}

fn attempt<'a>(remote: &str, access_key: &'a str) -> Attempt<'a> {
    let remote = remote.parse().expect("an address");
    Attempt { remote, access_key: Some(access_key) }
}

/// Fails until a penalty begins; tells how often that was.
fn fail_until_penalty(strangers: &Strangers, attempt: &Attempt<'_>, now_ns: u64) -> usize {
    let begun = |_: &usize| !strangers.failed(attempt, CODE, now_ns).is_empty();
    (1..100).find(begun).expect("a penalty begins")
}

#[test]
fn guesses_come_under_a_penalty_once() {
    let strangers = strangers();
    let guess = attempt("192.0.2.1", "NOBODY");
    let unknown = || false;
    assert_eq!(strangers.may_try(&guess, unknown, 0), Ok(()));
    assert_eq!(fail_until_penalty(&strangers, &guess, 0), 6);
    // What was under way fails too, and is told no more.
    assert!(strangers.failed(&guess, CODE, 0).is_empty());
    let left = strangers.may_try(&guess, unknown, 4 * SECOND_NS);
    assert_eq!(left, Err(Duration::from_secs(6)));
    assert_eq!(strangers.may_try(&guess, unknown, 10 * SECOND_NS), Ok(()));
    let stats = strangers.stats();
    assert_eq!((stats.unverified, stats.penalties), (1, 2), "an address and a key");
    assert!(stats.failures.contains(&(CODE, 7)), "{stats:?}");
    // What it earned meanwhile is all that it has.
    assert!(fail_until_penalty(&strangers, &guess, 10 * SECOND_NS) <= 6);
}

#[test]
fn others_behind_the_same_address_go_on() {
    let strangers = strangers();
    for number in 0..20 {
        let name = format!("GUESS{number}");
        strangers.failed(&attempt("192.0.2.1", &name), CODE, 0);
    }
    let (own, guess) = (attempt("192.0.2.1", "OWN"), attempt("192.0.2.1", "ANOTHER"));
    assert_eq!(strangers.may_try(&own, || true, 1), Ok(()));
    assert!(strangers.may_try(&guess, || false, 1).is_err());
    let nameless = Attempt { access_key: None, ..own };
    assert!(strangers.may_try(&nameless, || true, 1).is_err());
    // A key that fails itself is no better than a guess.
    strangers.failed(&own, CODE, 1);
    assert!(strangers.may_try(&own, || true, 2).is_err());
    let elsewhere = attempt("192.0.2.2", "OWN");
    assert_eq!(strangers.may_try(&elsewhere, || true, 2), Ok(()));
}

#[test]
fn a_key_that_many_guess_at_opens_for_its_holder() {
    let strangers = strangers();
    for number in 0..20 {
        let remote = format!("192.0.2.{number}");
        strangers.failed(&attempt(&remote, "KEY"), CODE, 0);
    }
    assert!(strangers.may_try(&attempt("192.0.2.3", "KEY"), || true, 1).is_err());
    assert_eq!(strangers.may_try(&attempt("198.51.100.1", "KEY"), || true, 1), Ok(()));
    assert_eq!(strangers.may_try(&attempt("192.0.2.3", "OTHER"), || true, 1), Ok(()));
}

#[test]
fn a_network_of_addresses_is_one() {
    let strangers = strangers();
    for number in 0..20 {
        let name = format!("GUESS{number}");
        let remote = format!("2001:db8::{number:x}:1");
        let penalties = strangers.failed(&attempt(&remote, &name), CODE, 0);
        let network = Penalty::Address("2001:db8::/64".to_owned());
        assert!(penalties.is_empty() || penalties == [network], "{penalties:?}");
    }
    let blocked = |remote| strangers.may_try(&attempt(remote, "X"), || false, 1).is_err();
    assert!(blocked("2001:db8::ffff:1"));
    assert!(!blocked("2001:db8:0:1::1"));
    assert!(!blocked("192.0.2.1"));
    // IPv4 in IPv6's clothes.
    fail_until_penalty(&strangers, &attempt("192.0.2.9", "Y"), 0);
    assert!(blocked("::ffff:192.0.2.9"));
}

#[test]
fn many_names_do_not_make_an_address_forgotten() {
    let strangers = strangers();
    for number in 0..50_000 {
        strangers.failed(&attempt("192.0.2.1", &format!("GUESS{number}")), CODE, 0);
    }
    assert!(strangers.may_try(&attempt("192.0.2.1", "MORE"), || false, 1).is_err());
}

#[test]
fn without_a_burst_nobody_is_slowed_down() {
    let off = Strangers::new(&Auth { failures_burst: 0, ..Auth::default() });
    let guess = attempt("192.0.2.1", "NOBODY");
    for _ in 0..1000 {
        assert!(off.failed(&guess, CODE, 0).is_empty());
    }
    assert_eq!(off.may_try(&guess, || false, 0), Ok(()));
}

fn limits(requests: u64, bytes: u64, keys: u64) -> Limits {
    Limits {
        requests_per_second: NonZeroU64::new(requests),
        bytes_per_second: NonZeroU64::new(bytes),
        keys_in_flight: (keys > 0).then_some(keys),
        sessions: None,
    }
}

fn usage(limiter: &Limiter, of_tenant: Limits, of_user: Limits) -> Usage {
    limiter.usage(TenantId(7), of_tenant, Some((&Arc::from("anna"), of_user)))
}

#[test]
fn what_the_tenant_refuses_its_user_keeps() {
    let limiter = Limiter::default();
    let both = usage(&limiter, limits(1, 0, 0), limits(3, 0, 0));
    let user_alone = usage(&limiter, Limits::default(), limits(3, 0, 0));
    assert!(both.request().is_ok());
    for _ in 0..10 {
        let exceeded = both.request().expect_err("one in a second");
        assert_eq!(exceeded.what, Limited::Requests);
        assert!(exceeded.retry_after > Duration::ZERO);
    }
    assert!(user_alone.request().is_ok() && user_alone.request().is_ok());
    assert!(user_alone.request().is_err());
    let refused = limiter.stats().limited;
    assert!(refused.contains(&("requests", 11)), "{refused:?}");
}

#[test]
fn others_have_rates_of_their_own() {
    let limiter = Limiter::default();
    let of = |tenant| limiter.usage(TenantId(tenant), limits(1, 0, 0), None);
    assert!(of(1).request().is_ok() && of(1).request().is_err());
    assert!(of(2).request().is_ok());
    let unlimited = limiter.usage(TenantId(1), Limits::default(), None);
    assert!((0..1000).all(|_| unlimited.request().is_ok()));
}

#[test]
fn bytes_are_paid_for_to_both() {
    let limiter = Limiter::default();
    let anna = usage(&limiter, limits(0, 1000, 0), limits(0, 100, 0));
    let tenant = limiter.usage(TenantId(7), limits(0, 1000, 0), None);
    assert_eq!(anna.slowest(), Some(100));
    assert_eq!(anna.pay(500), Duration::ZERO);
    // Five seconds of hers, half a second of her tenant's.
    let hers = anna.pay(1);
    assert!((3..=4).contains(&hers.as_secs()), "{hers:?}");
    assert_eq!(tenant.pay(1000), Duration::ZERO);
    assert!(tenant.pay(1) > Duration::ZERO);
    let unlimited = limiter.usage(TenantId(9), Limits::default(), None);
    assert_eq!(unlimited.pay(u64::MAX), Duration::ZERO);
    assert!(!unlimited.paces());
}

#[tokio::test]
async fn keys_are_counted_while_they_live() {
    let limiter = Limiter::default();
    let (one, two) = (limits(0, 0, 1), limits(0, 0, 2));
    let anna = usage(&limiter, two, one);
    let tenant = limiter.usage(TenantId(7), two, None);
    let first = anna.direct(10).await.expect("there is room");
    assert_eq!(anna.direct(10).await.err().map(|e| e.what), Some(Limited::Keys));
    let second = tenant.direct(10).await.expect("the tenant has two");
    assert!(tenant.direct(10).await.is_err());
    drop(first);
    // What the user had and the tenant refuses is not left behind.
    let third = tenant.direct(10).await.expect("there is room");
    assert!(anna.direct(10).await.is_err());
    drop((second, third));
    assert!(anna.direct(10).await.is_ok());
}

#[tokio::test]
async fn direct_transfers_wait_a_little_and_no_longer() {
    let limiter = Limiter::default();
    let usage = limiter.usage(TenantId(7), limits(0, 1 << 20, 0), None);
    // Larger than a second's worth: it goes, and what follows pays for it.
    assert!(usage.direct(8 << 20).await.is_ok());
    let exceeded = usage.direct(1).await.err().expect("seven seconds are too long");
    assert_eq!(exceeded.what, Limited::Bytes);
    assert!((6..=7).contains(&exceeded.retry_after.as_secs()), "{exceeded:?}");
    let begun = Instant::now();
    let other = limiter.usage(TenantId(8), limits(0, 1 << 20, 0), None);
    assert!(other.direct((5 << 20) / 4).await.is_ok());
    assert!(other.direct(1).await.is_ok());
    let waited = begun.elapsed();
    assert!(waited >= Duration::from_millis(200), "{waited:?}");
}
