//! One client process, or several: children of the same binary with the same arguments, told
//! over their standard input what to do and answering over their standard output, a line of
//! JSON each.

use std::process::Stdio;

use anyhow::{Context as _, bail};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::crew::{Answer, Crew, Order};
use super::dataset::Target;
use crate::output;

/// The argument that makes a child of a process; it stands in no help text.
pub(super) const CHILD: &str = "child";

/// Who measures.
pub(super) enum Processes {
    /// This process.
    Own(Crew),
    /// Others.
    Children(Vec<Process>),
}

impl Processes {
    pub(super) fn start(count: usize, targets: &[Target]) -> anyhow::Result<Self> {
        if count == 1 {
            return Ok(Self::Own(Crew::new(targets.to_vec())));
        }
        let children = (0..count).map(|_| Process::start()).collect::<anyhow::Result<_>>();
        children.map(Self::Children)
    }

    /// Has all of them carry out an order each, side by side; their answers.
    pub(super) async fn all(
        &mut self,
        order: impl Fn(usize) -> Order,
    ) -> anyhow::Result<Vec<Answer>> {
        match self {
            Self::Own(crew) => Ok(vec![crew.carry_out(order(0)).await?]),
            Self::Children(children) => {
                let each = children.iter_mut().enumerate();
                try_join_all(each.map(|(number, child)| {
                    let order = order(number);
                    async move {
                        let answer = child.carry_out(&order).await;
                        answer.with_context(|| format!("client process {number}"))
                    }
                }))
                .await
            }
        }
    }
}

/// A child. It ends when its standard input does, and is killed when this is dropped.
pub(super) struct Process {
    _child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

/// An answer on its way: what failed is told with its causes.
#[derive(Serialize, Deserialize)]
enum Told {
    Done(Answer),
    Failed(String),
}

impl Process {
    fn start() -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("where this program is")?;
        let mut child = Command::new(&binary)
            .args(std::env::args_os().skip(1))
            .arg(format!("--{CHILD}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let orders = child.stdin.take().context("standard input is piped")?;
        let answers = child.stdout.take().context("standard output is piped")?;
        Ok(Self { _child: child, orders, answers: BufReader::new(answers).lines() })
    }

    async fn carry_out(&mut self, order: &Order) -> anyhow::Result<Answer> {
        let mut line = serde_json::to_vec(order)?;
        line.push(b'\n');
        self.orders.write_all(&line).await.context("it takes no orders")?;
        let answer = self.answers.next_line().await?.context("it has ended")?;
        match serde_json::from_str(&answer)? {
            Told::Done(answer) => Ok(answer),
            Told::Failed(why) => bail!("{why}"),
        }
    }
}

/// What a child does: it carries out orders until there are none any more.
pub(super) async fn serve(targets: Vec<Target>) -> anyhow::Result<()> {
    let mut crew = Crew::new(targets);
    while let Some(order) = tokio::task::spawn_blocking(|| std::io::stdin().lines().next()).await? {
        let order = order?;
        let order: Order = serde_json::from_str(&order).context("a strange order")?;
        let told = match crew.carry_out(order).await {
            Ok(answer) => Told::Done(answer),
            Err(error) => Told::Failed(format!("{error:#}")),
        };
        output::line(&serde_json::to_string(&told)?);
    }
    Ok(())
}
