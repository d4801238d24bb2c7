//! Encrypted objects into and out of a client's memory.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use keyway_gateway::s3::S3Config;
use keyway_proto::unit::MIB;
use keyway_proto::{DataKey, DirectWork, NodeId};

use super::ranges::{document, placed};
use super::{Direct, moved, nothing_moved, pattern};
use crate::direct_node::DirectNode;
use crate::encryption::{CUSTOMER, Key, Under};
use crate::fixture::{Reply, Server};

impl Direct {
    async fn taking_customers_keys() -> Self {
        let node = DirectNode::new(NodeId(1));
        let config = S3Config { customer_keys_without_tls: true, ..S3Config::default() };
        let server = Server::over(config, node.clone(), node.local()).await;
        Self::over(server, node).await
    }

    /// The key in the last plan, which no answer may show.
    fn key_of_the_last(&self) -> DataKey {
        let plan = self.node.last.lock().take().expect("a plan came");
        let shown = format!("{plan:?}");
        assert!(shown.contains("DataKey(hidden)"), "{shown}");
        let key = match plan.work {
            DirectWork::Get(get, _) => get.key,
            DirectWork::Gather(gather, _) => gather.key,
            DirectWork::Put(put) => put.key,
        };
        key.expect("the object is encrypted")
    }
}

fn does_not_show(reply: &Reply, key: &DataKey) {
    let shown = format!("{:?}", reply.headers);
    let bytes = key.expose();
    for form in [hex::encode(bytes), BASE64.encode(bytes), format!("{bytes:?}")] {
        assert!(!shown.contains(&form), "a data key is in an answer");
    }
}

#[tokio::test]
async fn encrypted_bytes_go_both_ways() {
    let direct = Direct::taking_customers_keys().await;
    let bytes = pattern((17 << 20) + 5);
    for under in [Under::Service, Under::Customer(Key(1))] {
        let (token, buffer) = direct.node.arm(direct.session, &[bytes.len() as u32]);
        direct.node.fill(&buffer, &bytes);
        let put = under.asked(direct.put("/bucket/key", &token)).send().await.expect(200);
        moved(&put, "200", &bytes);
        under.is_told(&put);
        let key = direct.key_of_the_last();
        does_not_show(&put, &key);

        let (token, buffer) = direct.node.arm(direct.session, &[bytes.len() as u32]);
        let get = under.shown(direct.get("/bucket/key", &token), CUSTOMER);
        let got = get.send().await.expect(200);
        moved(&got, "200", &bytes);
        under.is_told(&got);
        assert!(direct.node.read(&buffer) == bytes);
        assert_eq!(direct.key_of_the_last(), key);
        does_not_show(&got, &key);

        let over_http = under.shown(direct.server.get("/bucket/key"), CUSTOMER);
        assert!(over_http.send().await.expect(200).body == bytes);

        let ranges = [placed(16 * MIB - 5000, 9000, 0), placed(7, 1, 9000)];
        let (token, buffer) = direct.node.arm(direct.session, &[9001]);
        let gather = direct.ranges(&token, document("key", None, &ranges));
        let gathered = under.shown(gather, CUSTOMER).send().await.expect(200);
        let from = 16 * MIB as usize - 5000;
        let expected = [&bytes[from..from + 9000], &bytes[7..8]].concat();
        moved(&gathered, "200", &expected);
        under.is_told(&gathered);
        assert!(direct.node.read(&buffer) == expected);
        assert_eq!(direct.key_of_the_last(), key);
        direct.server.delete("/bucket/key").send().await.expect(204);
    }
}

#[tokio::test]
async fn without_its_key_nothing_moves() {
    let direct = Direct::taking_customers_keys().await;
    let own = Under::Customer(Key(1));
    own.asked(direct.server.put("/bucket/key")).body("abc").send().await.expect(200);
    let ranges = document("key", None, &[placed(0, 3, 0)]);
    for (key, status, code) in [(None, 400, "InvalidRequest"), (Some(Key(2)), 403, "AccessDenied")]
    {
        for gathers in [false, true] {
            let (token, buffer) = direct.node.arm(direct.session, &[3]);
            let call = match gathers {
                true => direct.ranges(&token, ranges.clone()),
                false => direct.get("/bucket/key", &token),
            };
            let call = match key {
                Some(key) => key.on(call, CUSTOMER),
                None => call,
            };
            nothing_moved(&call.send().await.refused(status, code), "quiet");
            assert_eq!(direct.node.read(&buffer), [0xee; 3]);
        }
    }
}
