//! Signatures in the query.

use keyway_integration_tests::sigv4::Signer;
use keyway_integration_tests::wire::Request;

use super::case::{Case, WHOLE, World, refused};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = edited();
    cases.extend(times());
    cases.push(refused("presigned: for GET, used to PUT", 403, "SignatureDoesNotMatch", |world| {
        let mut request = presigned(world, 60);
        request.method = "PUT".to_owned();
        request.body("x")
    }));
    cases.push(refused("presigned: another key", 403, "SignatureDoesNotMatch", |world| {
        let mut request = presigned(world, 60);
        request.path.push('2');
        request
    }));
    cases.push(refused("presigned: an added parameter", 403, "SignatureDoesNotMatch", |world| {
        presigned(world, 60).query("versionId", "null")
    }));
    cases.push(refused("presigned: an added x-amz header", 403, "AccessDenied", |world| {
        let mut request = world.object("PUT", "presigned");
        world.signer().presign(&mut request, 60);
        request.header("x-amz-copy-source", "/malformed/whole")
    }));
    cases.push(refused("presigned: with signature version 2", 400, "InvalidRequest", |world| {
        world
            .object("GET", WHOLE)
            .query("AWSAccessKeyId", &world.credentials.access_key)
            .query("Expires", "4102444800")
            .query("Signature", "c2lnbmF0dXJlAAAAAAAAAAAAAAAAAAA=")
    }));
    cases
}

fn presigned(world: &World, expires_s: i64) -> Request {
    let mut request = world.object("GET", WHOLE);
    world.signer().presign(&mut request, expires_s);
    request
}

/// A valid presigned request with one parameter removed or replaced.
fn edited() -> Vec<Case> {
    const MALFORMED: &str = "AuthorizationQueryParametersError";
    let edits: [(&str, Option<&str>, u16, &'static str); 12] = [
        ("X-Amz-Algorithm", Some("AWS4-HMAC-MD5"), 400, MALFORMED),
        ("X-Amz-Credential", None, 400, MALFORMED),
        ("X-Amz-Credential", Some("nobody"), 400, MALFORMED),
        ("X-Amz-Date", None, 400, MALFORMED),
        ("X-Amz-Date", Some("tomorrow"), 400, MALFORMED),
        ("X-Amz-Expires", None, 400, MALFORMED),
        ("X-Amz-Expires", Some("soon"), 400, MALFORMED),
        ("X-Amz-Expires", Some("-1"), 400, MALFORMED),
        ("X-Amz-Expires", Some("604801"), 400, MALFORMED),
        ("X-Amz-SignedHeaders", None, 400, MALFORMED),
        ("X-Amz-Signature", None, 403, "AccessDenied"),
        ("X-Amz-Signature", Some("00"), 400, MALFORMED),
    ];
    edits
        .into_iter()
        .map(|(parameter, value, status, code)| {
            let name = match value {
                Some(value) => format!("presigned: {parameter}={value}"),
                None => format!("presigned: no {parameter}"),
            };
            refused(name, status, code, move |world| {
                let mut request = presigned(world, 60);
                match value {
                    Some(value) => {
                        let mut query = request.query.iter_mut();
                        let pair = query.find(|(name, _)| name == parameter);
                        pair.expect("a presigned request has it").1 = value.to_owned();
                    }
                    None => request.query.retain(|(name, _)| name != parameter),
                }
                request
            })
        })
        .collect()
}

fn times() -> Vec<Case> {
    let of = |skew_s: i64, expires_s: i64| {
        move |world: &World| {
            let mut request = world.object("GET", WHOLE);
            Signer::skewed(&world.credentials, skew_s).presign(&mut request, expires_s);
            request
        }
    };
    vec![
        refused("presigned: expired a minute ago", 403, "AccessDenied", of(-120, 60)),
        refused("presigned: expired a year ago", 403, "AccessDenied", of(-31_536_000, 604_800)),
        refused("presigned: from an hour ahead", 403, "RequestTimeTooSkewed", of(3_600, 60)),
        refused(
            "presigned: longer than a week",
            400,
            "AuthorizationQueryParametersError",
            of(0, 1 << 40),
        ),
        refused(
            "presigned: for another service",
            400,
            "AuthorizationQueryParametersError",
            |world| {
                let mut signer = world.signer();
                signer.service = "ec2".to_owned();
                let mut request = world.object("GET", WHOLE);
                signer.presign(&mut request, 60);
                request
            },
        ),
        refused("presigned: by an unknown key", 403, "InvalidAccessKeyId", |world| {
            let mut signer = world.signer();
            signer.credentials.access_key = "AKIDNOBODY".to_owned();
            let mut request = world.object("GET", WHOLE);
            signer.presign(&mut request, 60);
            request
        }),
    ]
}
