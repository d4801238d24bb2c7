//! Temporary credentials as time goes by, which the real binary's tests cannot wait for. What they
//! may do and how they are stolen is in `integration-tests/tests/tenants/roles.rs`.

use keyway_auth::directory::{
    AccessKey, Change, Key, KeyState, Limits, Quota, Role, RoleRecord, Standing, User, UserKind,
};
use keyway_auth::sigv4::Signer;
use keyway_auth::{AccessKeyId, SecretKey};
use keyway_gateway::accounts::{Accounts, AccountsError};
use keyway_proto::TenantId;

use crate::fixture::{ACCESS_KEY, Reply, SECRET_KEY, Server};

const ANNA: &str = "AKIDANNA";
const ROLE: &str = "arn%3Aaws%3Aiam%3A%3A000000000000%3Arole%2Freader";
const TRUST: &str = r#"{"Statement": {"Effect": "Allow", "Action": "sts:AssumeRole",
    "Principal": {"AWS": "arn:aws:iam::000000000000:user/anna"}}}"#;

async fn change(accounts: &Accounts, change: Change) {
    accounts.change(|_| Ok::<_, AccountsError>(Some(change))).await.unwrap();
}

fn anna() -> User {
    User {
        tenant: TenantId::ROOT,
        name: "anna".parse().unwrap(),
        id: "KWU1".to_owned(),
        kind: UserKind::Person,
        state: Standing::Active,
        created: jiff::Timestamp::UNIX_EPOCH,
        groups: [].into(),
        policies: [].into(),
        tags: [].into(),
        sessions_valid_from: None,
        limits: Limits::default(),
        quota: Quota::default(),
    }
}

fn key(expires: Option<jiff::Timestamp>) -> Change {
    let record = AccessKey {
        id: AccessKeyId::new(ANNA),
        tenant: TenantId::ROOT,
        user: Some("anna".parse().unwrap()),
        state: KeyState::Active,
        created: jiff::Timestamp::UNIX_EPOCH,
        expires,
        policy: None,
        description: String::new(),
    };
    Change::PutKey(Key::read(record, SecretKey::new(SECRET_KEY.to_owned())).unwrap())
}

fn role() -> RoleRecord {
    RoleRecord {
        tenant: TenantId::ROOT,
        name: "reader".parse().unwrap(),
        id: "KWR1".to_owned(),
        state: Standing::Active,
        created: jiff::Timestamp::UNIX_EPOCH,
        trust: TRUST.to_owned(),
        policies: [].into(),
        session_max_s: 7200,
        tags: [].into(),
        sessions_valid_from: None,
    }
}

/// A server with anna, who may take a role.
async fn start(dir: &tempfile::TempDir) -> (Server, std::sync::Arc<Accounts>) {
    let (server, accounts) = Server::with_accounts(dir.path()).await;
    let reader = Change::PutRole(Role::read(role()).unwrap());
    for one in [Change::PutUser(anna()), key(None), reader] {
        change(&accounts, one).await;
    }
    server.put("/bucket").send().await.expect(200);
    (server, accounts)
}

fn signer(id: &str, secret: &str, service: &str) -> Signer {
    Signer::new(AccessKeyId::new(id), SecretKey::new(secret.to_owned()), "us-east-1", service)
}

async fn sts(server: &Server, by: Signer, form: &str) -> Reply {
    let form = format!("Version=2011-06-15&Action={form}");
    let call = server.post("/").header("content-type", "application/x-www-form-urlencoded");
    call.signer(by).body(form).send().await
}

/// Who signs with the credentials of an answer.
fn temporary(reply: &Reply, service: &str) -> Signer {
    let signer = signer(&reply.tag("AccessKeyId"), &reply.tag("SecretAccessKey"), service);
    signer.with_session_token(reply.tag("SessionToken").into())
}

async fn assume(server: &Server, by: Signer, seconds: u32) -> Reply {
    let form = format!("AssumeRole&RoleArn={ROLE}&RoleSessionName=job&DurationSeconds={seconds}");
    sts(server, by, &form).await
}

#[tokio::test]
async fn credentials_end_at_their_time() {
    let dir = tempfile::tempdir().unwrap();
    let (server, accounts) = start(&dir).await;
    let by_root = || signer(ACCESS_KEY, SECRET_KEY, "sts");
    let session = sts(&server, by_root(), "GetSessionToken&DurationSeconds=900").await.expect(200);
    assert_eq!(session.tag("Expiration"), "2026-01-01T00:15:00Z");
    let use_it = || server.get("/bucket").signer(temporary(&session, "s3")).send();
    use_it().await.expect(200);
    server.clock.advance_s(899);
    use_it().await.expect(200);
    server.clock.advance_s(1);
    use_it().await.refused(400, "ExpiredToken");
    let asked = sts(&server, temporary(&session, "sts"), "GetCallerIdentity").await;
    assert_eq!((asked.status.as_u16(), asked.tag("Code").as_str()), (403, "ExpiredToken"));

    // The root's session lasts an hour, whatever it asks for.
    let session = sts(&server, by_root(), "GetSessionToken&DurationSeconds=129600").await;
    assert_eq!(session.expect(200).tag("Expiration"), "2026-01-01T01:15:00Z");
    // Nobody's lasts longer than the key that it goes back to.
    let end = "2026-01-01T00:20:00Z".parse().unwrap();
    change(&accounts, key(Some(end))).await;
    let by_anna = || signer(ANNA, SECRET_KEY, "sts");
    let taken = assume(&server, by_anna(), 3600).await.expect(200);
    assert_eq!(taken.tag("Expiration"), "2026-01-01T00:20:00Z");
    let who = || sts(&server, temporary(&taken, "sts"), "GetCallerIdentity");
    let arn = "arn:aws:sts::000000000000:assumed-role/reader/job";
    assert_eq!(who().await.expect(200).tag("Arn"), arn);
    server.clock.advance_s(300);
    assert_eq!(who().await.tag("Code"), "ExpiredToken");
    assert_eq!(assume(&server, by_anna(), 3600).await.tag("Code"), "InvalidClientTokenId");
}

#[tokio::test]
async fn sessions_end_when_they_are_revoked_and_others_begin() {
    let dir = tempfile::tempdir().unwrap();
    let (server, accounts) = start(&dir).await;
    let by_anna = || signer(ANNA, SECRET_KEY, "sts");
    let who = async |taken: &Reply| {
        sts(&server, temporary(taken, "sts"), "GetCallerIdentity").await.status.as_u16()
    };
    for revoke in ["role", "user"] {
        let first = assume(&server, by_anna(), 900).await.expect(200);
        assert_eq!(who(&first).await, 200);
        let ended = Some(accounts.now());
        let by = match revoke {
            "role" => {
                let record = RoleRecord { sessions_valid_from: ended, ..role() };
                Change::PutRole(Role::read(record).unwrap())
            }
            _ => Change::PutUser(User { sessions_valid_from: ended, ..anna() }),
        };
        change(&accounts, by).await;
        assert_eq!(who(&first).await, 403, "{revoke}");
        server.clock.advance_s(1);
        assert_eq!(who(&first).await, 403, "{revoke}");
        let second = assume(&server, by_anna(), 900).await.expect(200);
        assert_eq!(who(&second).await, 200, "{revoke}");
    }
}

#[tokio::test]
async fn lengths_are_bounded_by_the_role() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _accounts) = start(&dir).await;
    let by_anna = || signer(ANNA, SECRET_KEY, "sts");
    assume(&server, by_anna(), 7200).await.expect(200);
    for (seconds, code) in [(7201, "ValidationError"), (899, "ValidationError")] {
        let reply = assume(&server, by_anna(), seconds).await;
        assert_eq!((reply.status.as_u16(), reply.tag("Code").as_str()), (400, code), "{reply:?}");
    }
    // Signed for S3, it is no call for credentials; and signed for STS, none of S3.
    let reply = sts(&server, signer(ANNA, SECRET_KEY, "s3"), "GetCallerIdentity").await;
    assert_eq!(reply.tag("Code"), "IncompleteSignature", "{reply:?}");
    let reply = server.get("/bucket").signer(signer(ACCESS_KEY, SECRET_KEY, "sts")).send().await;
    reply.refused(400, "AuthorizationHeaderMalformed");
    let rails = server.get("/_keyway/v1/rails").signer(signer(ACCESS_KEY, SECRET_KEY, "sts"));
    rails.send().await.refused(400, "AuthorizationHeaderMalformed");
}
