//! Forms of browsers. The first byte chooses what the input is: a form's whole body, a policy that
//! is signed as it is, or a field's value in a form that is sound. The server may refuse, but not
//! fail; and of the files it takes those that are as large as was signed.
#![no_main]

use std::cell::RefCell;

use keyway_fuzz::Gateway;
use keyway_fuzz::form::{Form, content_type};
use keyway_fuzz::gateway::BUCKET;
use keyway_fuzz::sigv4::Signer;
use keyway_fuzz::wire::Request;
use libfuzzer_sys::fuzz_target;

const FIELDS: [&str; 8] = [
    "key", "tagging", "acl", "Content-Type", "success_action_redirect", "x-amz-meta-a",
    "x-amz-checksum-crc32c", "success_action_status",
];

thread_local! {
    static GATEWAY: RefCell<Gateway> = RefCell::new(Gateway::new());
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, input)) = bytes.split_first() else { return };
    GATEWAY.with_borrow_mut(|gateway| {
        gateway.renew();
        let credentials = gateway.credentials.clone();
        let request = match choice % 4 {
            0 => Request::new("POST", format!("/{BUCKET}"))
                .header("content-type", content_type())
                .body(input),
            1 => {
                let Ok(policy) = std::str::from_utf8(input) else { return };
                let signer = Signer::new(&credentials);
                let form = Form { covered: false, ..Form::new(BUCKET, "posted", "file") };
                let scope = format!("{}/{}", credentials.access_key, signer.scope());
                form.field("x-amz-algorithm", "AWS4-HMAC-SHA256")
                    .field("x-amz-credential", &scope)
                    .field("x-amz-date", &signer.time)
                    .signed_policy(&signer, policy)
                    .request()
            }
            2 => {
                let Ok(value) = std::str::from_utf8(input) else { return };
                let field = FIELDS[usize::from(choice / 4) % FIELDS.len()];
                let form = Form { covered: false, ..Form::new(BUCKET, "posted", "file") };
                let form = form.condition(r#"["starts-with", "$key", ""]"#);
                let form = form.condition(&format!(r#"["starts-with", "${field}", ""]"#));
                let mut form = match field {
                    "key" => form,
                    _ => form.field(field, value),
                };
                if field == "key" {
                    form.conditions.retain(|condition| !condition.contains(r#"["eq", "$key""#));
                    form.tamper("key", value);
                }
                form.covered = true;
                form.signed(&credentials).request()
            }
            _ => {
                let form = Form::new(BUCKET, "posted", input);
                form.condition(r#"["content-length-range", 0, 1000]"#).signed(&credentials).request()
            }
        };
        let length = request.body.len().to_string();
        let request = request.header("host", "localhost").header("content-length", length);
        if let Some((status, body)) = gateway.call(&request) {
            let text = String::from_utf8_lossy(&body);
            assert!(status != 500, "a failure of the server's own: {text}");
            if choice % 4 == 3 {
                assert_eq!(status == 204, input.len() <= 1000, "{status} {text}");
            }
        }
    });
});
