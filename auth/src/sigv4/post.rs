//! Signatures of POST policies: the server's side, for no other operation is verified here.

use s3s_sigv4::AmzDate;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use crate::credential::SecretKey;

/// The scope of a signature over a POST policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostScope<'a> {
    /// When it was made: `YYYYMMDDTHHMMSSZ`.
    pub date: &'a str,
    /// The region.
    pub region: &'a str,
    /// The service.
    pub service: &'a str,
}

/// Whether `signature`, in hexadecimal, is that of `policy` as it stands in the form (base64) by
/// this secret. Compared in constant time; `false` also for a date that is none.
///
/// Source: "Authenticating Requests in Browser-Based Uploads Using POST" in Amazon's S3 API
/// reference.
pub fn is_signature_of_policy(
    secret: &SecretKey,
    scope: PostScope<'_>,
    policy: &str,
    signature: &str,
) -> bool {
    let Ok(date) = AmzDate::parse(scope.date) else { return false };
    let key = s3s_sigv4::derive_signing_key(secret.expose(), &date, scope.region, scope.service);
    let key = Zeroizing::new(key);
    let expected = s3s_sigv4::calculate_signature_with_key(policy, &key);
    let mut given = [0; 32];
    let is_hex = hex::decode_to_slice(signature, &mut given).is_ok();
    // What is not hexadecimal is compared as well, and never equal.
    bool::from(expected.ct_eq(&given)) && is_hex
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Amazon's reference.
    const POLICY: &str = "eyAiZXhwaXJhdGlvbiI6ICIyMDE1LTEyLTMwVDEyOjAwOjAwLjAwMFoiLA0KICAiY29uZGl0aW9ucyI6IFsNCiAgICB7ImJ1Y2tldCI6ICJzaWd2NGV4YW1wbGVidWNrZXQifSwNCiAgICBbInN0YXJ0cy13aXRoIiwgIiRrZXkiLCAidXNlci91c2VyMS8iXSwNCiAgICB7ImFjbCI6ICJwdWJsaWMtcmVhZCJ9LA0KICAgIHsic3VjY2Vzc19hY3Rpb25fcmVkaXJlY3QiOiAiaHR0cDovL3NpZ3Y0ZXhhbXBsZWJ1Y2tldC5zMy5hbWF6b25hd3MuY29tL3N1Y2Nlc3NmdWxfdXBsb2FkLmh0bWwifSwNCiAgICBbInN0YXJ0cy13aXRoIiwgIiRDb250ZW50LVR5cGUiLCAiaW1hZ2UvIl0sDQogICAgeyJ4LWFtei1tZXRhLXV1aWQiOiAiMTQzNjUxMjM2NTEyNzQifSwNCiAgICB7IngtYW16LXNlcnZlci1zaWRlLWVuY3J5cHRpb24iOiAiQUVTMjU2In0sDQogICAgWyJzdGFydHMtd2l0aCIsICIkeC1hbXotbWV0YS10YWciLCAiIl0sDQoNCiAgICB7IngtYW16LWNyZWRlbnRpYWwiOiAiQUtJQUlPU0ZPRE5ON0VYQU1QTEUvMjAxNTEyMjkvdXMtZWFzdC0xL3MzL2F3czRfcmVxdWVzdCJ9LA0KICAgIHsieC1hbXotYWxnb3JpdGhtIjogIkFXUzQtSE1BQy1TSEEyNTYifSwNCiAgICB7IngtYW16LWRhdGUiOiAiMjAxNTEyMjlUMDAwMDAwWiIgfQ0KICBdDQp9";
    const SIGNATURE: &str = "8afdbf4008c03f22c2cd3cdb72e4afbb1f6a588f3255ac628749a66d7f09699e";

    #[test]
    fn the_references_example_holds_and_nothing_near_it() {
        let secret = SecretKey::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned());
        let scope = PostScope { date: "20151229T000000Z", region: "us-east-1", service: "s3" };
        assert!(is_signature_of_policy(&secret, scope, POLICY, SIGNATURE));
        let other = PostScope { date: "20151230T000000Z", ..scope };
        assert!(!is_signature_of_policy(&secret, other, POLICY, SIGNATURE));
        let other = PostScope { region: "eu-west-1", ..scope };
        assert!(!is_signature_of_policy(&secret, other, POLICY, SIGNATURE));
        assert!(!is_signature_of_policy(&secret, scope, &POLICY[4..], SIGNATURE));
        for signature in ["", "00", &SIGNATURE[1..], &SIGNATURE.replace('8', "9")] {
            assert!(!is_signature_of_policy(&secret, scope, POLICY, signature), "{signature}");
        }
        let nowhen = PostScope { date: "yesterday", ..scope };
        assert!(!is_signature_of_policy(&secret, nowhen, POLICY, SIGNATURE));
    }
}
