//! The same clients, over HTTPS, in a bucket that keeps versions, locks each of them for a day, encrypts
//! them all, and has a policy: as a user who may do what it needs there, and neither delete versions nor the
//! bucket.

use std::process::Command;

use aws_sdk_s3::types::{
    DefaultRetention, ObjectLockConfiguration, ObjectLockEnabled, ObjectLockRetentionMode,
    ObjectLockRule, ServerSideEncryption, ServerSideEncryptionByDefault,
    ServerSideEncryptionConfiguration, ServerSideEncryptionRule,
};
use keyway_integration_tests::server::binary;
use keyway_integration_tests::sigv4::Credentials;
use serde_json::{Value, json};

use super::*;

macro_rules! guarded {
    ($($name:ident: $script:literal, $program:expr, $bucket:literal;)+) => {$(
        #[tokio::test]
        async fn $name() {
            in_guarded_bucket(stringify!($name), $script, &$program, $bucket).await;
        }
    )+};
}

guarded! {
    boto3: "boto3_client.py", built("venv/bin/python"), "boto3-bucket";
    awscli: "awscli_client.sh", built("venv/bin/aws"), "awscli-bucket";
    pyarrow: "pyarrow_client.py", built("venv/bin/python"), "pyarrow-bucket";
    s3fs: "s3fs_client.py", built("venv-s3fs/bin/python"), "s3fs-bucket";
    s5cmd: "s5cmd_client.sh", built("tools/bin/s5cmd"), "s5cmd-bucket";
    rclone: "rclone_client.sh", packaged("rclone"), "rclone-bucket";
    s3cmd: "s3cmd_client.sh", packaged("s3cmd"), "s3cmd-bucket";
}

async fn in_guarded_bucket(name: &str, script: &str, program: &Path, bucket: &str) {
    if !program.exists() {
        skipped(name, &format!("{} is not there", program.display()));
        return;
    }
    let server = start(Transport::Tls);
    let root = aws::client(&server, Transport::Tls).expect("the client is made");
    guard(&root, bucket).await;
    let user = user(&server, bucket);
    let ran = Run { name, script, program, transport: Transport::Tls, guarded: true };
    ran.against(&server, &user);
    kept(&root, bucket).await;
}

/// A bucket with locks, encryption, and a policy that nobody's own can undo.
async fn guard(root: &aws_sdk_s3::Client, bucket: &str) {
    let create = root.create_bucket().bucket(bucket).object_lock_enabled_for_bucket(true);
    create.send().await.expect("create bucket");
    let retention = DefaultRetention::builder();
    let retention = retention.mode(ObjectLockRetentionMode::Governance).days(1).build();
    let lock = ObjectLockConfiguration::builder()
        .object_lock_enabled(ObjectLockEnabled::Enabled)
        .rule(ObjectLockRule::builder().default_retention(retention).build())
        .build();
    let put = root.put_object_lock_configuration().bucket(bucket).object_lock_configuration(lock);
    put.send().await.expect("lock");
    let by_service = ServerSideEncryptionByDefault::builder();
    let by_service = by_service.sse_algorithm(ServerSideEncryption::Aes256).build();
    let rule = ServerSideEncryptionRule::builder()
        .apply_server_side_encryption_by_default(by_service.expect("an algorithm is named"))
        .build();
    let rules = ServerSideEncryptionConfiguration::builder().rules(rule).build();
    let put = root.put_bucket_encryption().bucket(bucket);
    let put = put.server_side_encryption_configuration(rules.expect("a rule is there"));
    put.send().await.expect("encryption");
    let all = [format!("arn:aws:s3:::{bucket}"), format!("arn:aws:s3:::{bucket}/*")];
    let policy = json!({ "Version": "2012-10-17", "Statement": [
        { "Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": all,
          "Condition": { "Bool": { "aws:SecureTransport": "false" } } },
        { "Effect": "Deny", "Principal": "*", "Resource": all,
          "Action": ["s3:DeleteBucket", "s3:DeleteObjectVersion", "s3:BypassGovernanceRetention"],
          "Condition": { "StringLike": { "aws:PrincipalArn": "arn:aws:iam::*:user/*" } } },
    ]});
    let put = root.put_bucket_policy().bucket(bucket).policy(policy.to_string());
    put.send().await.expect("policy");
}

/// A user who may do all in the bucket, as far as its own policy goes.
fn user(server: &Server, bucket: &str) -> Credentials {
    let policy = json!({ "Version": "2012-10-17", "Statement": [
        { "Effect": "Allow", "Action": "s3:*",
          "Resource": [format!("arn:aws:s3:::{bucket}"), format!("arn:aws:s3:::{bucket}/*")] },
        { "Effect": "Allow", "Action": "s3:ListAllMyBuckets", "Resource": "*" },
    ]});
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(policy.to_string().as_bytes()).unwrap();
    let document = file.path().to_str().unwrap();
    admin(server, &["policy", "stored", "put", "client", document]);
    admin(server, &["user", "put", "client", "--policy", "client"]);
    let key = admin(server, &["key", "create", "--user", "client"]);
    let told = |name: &str| key[name].as_str().expect("a new key is told").to_owned();
    Credentials { access_key: told("id"), secret_key: told("secret") }
}

fn admin(server: &Server, arguments: &[&str]) -> Value {
    let root = server.credentials();
    let output = Command::new(binary().expect("it was built"))
        .arg("admin")
        .args(arguments)
        .env("KEYWAY_ENDPOINT", server.url())
        .env("KEYWAY_CA_FILE", server.certificate_file())
        .env("KEYWAY_ACCESS_KEY", &root.access_key)
        .env("KEYWAY_SECRET_KEY", &root.secret_key)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

/// The client has deleted everything, and every version is there.
async fn kept(root: &aws_sdk_s3::Client, bucket: &str) {
    let listing = root.list_objects_v2().bucket(bucket).send().await.expect("list");
    assert_eq!(listing.key_count(), Some(0), "{:?}", listing.contents());
    let listing = root.list_object_versions().bucket(bucket).send().await.expect("list versions");
    let (versions, markers) = (listing.versions(), listing.delete_markers());
    let lengths: Vec<_> = versions.iter().filter_map(|version| version.size()).collect();
    assert!(lengths.contains(&(SMALL_BYTES as i64)), "{lengths:?}");
    assert!(lengths.contains(&(LARGE_BYTES as i64)), "{lengths:?}");
    assert!(!markers.is_empty());
    for version in versions {
        let get = root.get_object_retention().bucket(bucket).set_key(version.key.clone());
        let retention = get.set_version_id(version.version_id.clone()).send().await;
        assert!(retention.expect("retention").retention().is_some(), "{version:?}");
        let head = root.head_object().bucket(bucket).set_key(version.key.clone());
        let head = head.set_version_id(version.version_id.clone()).send().await.expect("head");
        assert_eq!(head.server_side_encryption(), Some(&ServerSideEncryption::Aes256));
    }
}
