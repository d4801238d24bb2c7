//! What is refused: documents, targets of others, and whoever may not.

use anyhow::{Result, ensure};
use keyway_integration_tests::wire::{Request, Response};

use crate::receiver::{Mode, Receiver};
use crate::scene::{config, document, put_document, rule, world};
use crate::world::{denied, expect, refused, statement};

const CREATED: [&str; 1] = ["ObjectCreated:*"];

#[test]
fn malformed_documents() -> Result<()> {
    let receiver = Receiver::start()?;
    let world = world(config("", &[("hook", receiver.address), ("other", receiver.address)]))?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    let good = |prefix: &str| rule("hook", &CREATED, prefix);
    let with = |from: &str, to: &str| document(&[good("a/").replace(from, to)]);
    let filter = |name: &str, value: &str| {
        format!("<FilterRule><Name>{name}</Name><Value>{value}</Value></FilterRule>")
    };
    let own = filter("prefix", "a/");
    let many: Vec<String> = (0..101).map(|n| good(&format!("{n:03}/"))).collect();
    let arn = "arn:keyway:sqs::hook:webhook";
    for (what, document, code) in [
        ("no XML", "<Notification".to_owned(), "MalformedXML"),
        ("no event", with("<Event>s3:ObjectCreated:*</Event>", ""), "MalformedXML"),
        ("no ARN", with(arn, "hook"), "InvalidArgument"),
        ("another's ARN", with(arn, "arn:aws:sqs:eu-1:1:hook"), "InvalidArgument"),
        ("no such target", with(arn, "arn:keyway:sqs::none:webhook"), "InvalidArgument"),
        ("another kind", with(arn, "arn:keyway:sqs::hook:nats"), "InvalidArgument"),
        ("another region", with(arn, "arn:keyway:sqs:mars:hook:webhook"), "InvalidArgument"),
        ("unknown event", with("ObjectCreated:*", "ObjectCreated:Rename"), "InvalidArgument"),
        ("event not sent", with("ObjectCreated:*", "ObjectRestore:*"), "InvalidArgument"),
        ("all events", with("ObjectCreated:*", "*"), "InvalidArgument"),
        ("unknown filter", with("prefix", "infix"), "InvalidArgument"),
        ("two prefixes", with(&own, &own.repeat(2)), "InvalidArgument"),
        (
            "long filter",
            with("<Value>a/", &format!("<Value>{}", "a".repeat(1025))),
            "InvalidArgument",
        ),
        ("long id", with("hook-a/", &"i".repeat(256)), "InvalidArgument"),
        (
            "same id",
            document(&[good("a/"), good("b/").replace("hook-b/", "hook-a/")]),
            "InvalidArgument",
        ),
        (
            "overlap",
            document(&[good("a/"), rule("other", &["ObjectCreated:Put"], "a/b")]),
            "InvalidArgument",
        ),
        ("overlap of all", document(&[good(""), rule("other", &CREATED, "a")]), "InvalidArgument"),
        ("too many", document(&many), "InvalidArgument"),
        (
            "a topic",
            document(&[good("")]).replace("Queue>", "Topic>").replace("QueueC", "TopicC"),
            "InvalidArgument",
        ),
        (
            "a function",
            document(&[good("")])
                .replace("Queue>", "CloudFunction>")
                .replace("QueueC", "CloudFunctionC"),
            "InvalidArgument",
        ),
        (
            "EventBridge",
            "<NotificationConfiguration><EventBridgeConfiguration/></NotificationConfiguration>"
                .to_owned(),
            "InvalidArgument",
        ),
    ] {
        let answer = put_document(&mut s3, "data", &document)?;
        refused(&answer, 400, code).map_err(|error| error.context(what))?;
    }
    // Nothing of it was kept, and nobody was sent a test event for it.
    let kept = s3.send(Request::new("GET", "/data").query("notification", ""))?;
    ensure!(!kept.text().contains("Queue"), "{}", kept.text());
    ensure!(receiver.tests().is_empty());
    // What does not overlap may stand side by side; filters' names are in any case.
    let suffix =
        good("a/").replace(&own, &(own.replace("prefix", "Prefix") + &filter("suffix", ".x")));
    let other =
        rule("other", &CREATED, "a/").replace(&own, &(own.clone() + &filter("Suffix", ".y")));
    let both = document(&[suffix, other, good("b/"), rule("hook", &["ObjectRemoved:*"], "")]);
    expect(&put_document(&mut s3, "data", &both)?, 200)?;
    ensure!(receiver.tests().len() == 2, "one for each target: {:?}", receiver.tests());
    Ok(())
}

/// Goal: a target that takes no test event is not accepted, unless the client says so.
#[test]
fn a_target_is_tried_when_it_is_named() -> Result<()> {
    let receiver = Receiver::start()?;
    let world = world(config("", &[("hook", receiver.address)]))?;
    let mut s3 = world.root();
    expect(&s3.create_bucket("data")?, 200)?;
    let document = document(&[rule("hook", &CREATED, "")]);
    receiver.set(Mode::Answers(500));
    refused(&put_document(&mut s3, "data", &document)?, 400, "InvalidArgument")?;
    let request = Request::new("PUT", "/data").query("notification", "");
    let request = request.header("x-amz-skip-destination-validation", "true");
    expect(&s3.send(request.body(document.clone()))?, 200)?;
    receiver.set(Mode::Takes);
    expect(&put_document(&mut s3, "data", &document)?, 200)
}

/// A refusal without what differs from request to request.
fn words(answer: &Response) -> String {
    let text = answer.text();
    let (before, rest) = text.split_once("<RequestId>").unwrap_or((&text, ""));
    let after = rest.split_once("</RequestId>").map_or("", |(_, after)| after);
    format!("{} {before}{after}", answer.status)
}

/// Goal: a target of some tenants is to the others as if it were not, and policies decide who may
/// set rules.
#[test]
fn targets_and_rules_of_others() -> Result<()> {
    let receiver = Receiver::start()?;
    // Tenants are numbered in the order in which they are made, the root's is 0.
    let config = config("", &[("hook", receiver.address)]) + "tenants = [1]\n";
    let world = world(config)?;
    let mine = world.tenant("mine")?;
    ensure!(mine.parse::<u64>()? == 1, "{mine}");
    world.tenant("other")?;
    for (tenant, may) in [("mine", true), ("other", false)] {
        let root = world.key(tenant, None)?;
        let mut s3 = world.s3(&root);
        let bucket = format!("{tenant}-data");
        expect(&s3.create_bucket(&bucket)?, 200)?;
        let named = |target: &str| document(&[rule(target, &CREATED, "")]);
        let none = put_document(&mut s3, &bucket, &named("none"))?;
        refused(&none, 400, "InvalidArgument")?;
        let answer = put_document(&mut s3, &bucket, &named("hook"))?;
        if may {
            expect(&answer, 200)?;
        } else {
            ensure!(words(&answer) == words(&none), "{} {}", words(&answer), words(&none));
        }
        // Who may read may not write, and the other way round.
        let (reads, writes) = ("s3:GetBucketNotification", "s3:PutBucketNotification");
        for (user, action) in [("reader", reads), ("writer", writes)] {
            let key = world.user(tenant, user, &[statement("Allow", &[action], &[&bucket])])?;
            let mut s3 = world.s3(&key);
            let get =
                s3.send(Request::new("GET", format!("/{bucket}")).query("notification", ""))?;
            let put = put_document(&mut s3, &bucket, &document(&[]))?;
            if action == reads {
                expect(&get, 200)?;
                denied(&put)?;
            } else {
                denied(&get)?;
                expect(&put, 200)?;
            }
        }
    }
    ensure!(receiver.tests().len() == 1, "{:?}", receiver.tests());
    Ok(())
}
