//! Batches on their way through a target: each gets one answer, whatever happens.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{RwLock, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::batch::{Answer, Answers, Batch, Full, Outcome};

/// A batch that has no answer yet. It gets one when it is dropped.
pub(crate) struct Job {
    pub(crate) batch: Batch,
    answers: Answers,
    is_begun: bool,
    is_answered: bool,
}

impl Job {
    /// The target begins with it, so that its fate may be unknown.
    pub(crate) fn begin(&mut self) {
        self.is_begun = true;
    }

    pub(crate) fn answer(&mut self, outcomes: Vec<Outcome>) {
        if !std::mem::replace(&mut self.is_answered, true) {
            (self.answers)(Answer { id: self.batch.id, outcomes });
        }
    }

    pub(crate) fn answer_all(&mut self, outcome: Outcome) {
        self.answer(vec![outcome; self.batch.records.len()]);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let text = "the target was stopped".into();
        self.answer_all(match self.is_begun {
            true => Outcome::Unknown(text),
            false => Outcome::Unavailable(text),
        });
    }
}

/// Where batches wait for a target.
pub(crate) struct Jobs {
    queue: mpsc::Sender<Job>,
    answers: Answers,
}

impl Jobs {
    pub(crate) fn new(answers: Answers) -> (Self, mpsc::Receiver<Job>) {
        let (queue, jobs) = mpsc::channel(QUEUED_BATCHES_MAX);
        (Self { queue, answers }, jobs)
    }

    pub(crate) fn put(&self, batch: Batch) -> Result<(), Full> {
        // A permit first, so that a batch is not answered and returned.
        match self.queue.try_reserve() {
            Ok(permit) => {
                let answers = Arc::clone(&self.answers);
                permit.send(Job { batch, answers, is_begun: false, is_answered: false });
                Ok(())
            }
            Err(_) => Err(Full(batch)),
        }
    }
}

/// Sends batches until the target is dropped, so many at a time.
pub(crate) async fn work_off<F>(
    mut jobs: mpsc::Receiver<Job>,
    sending_max: usize,
    send: impl Fn(Job) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut sending = JoinSet::new();
    // Batches share it; a batch that must be alone has it for itself, in the order of arrival.
    let alone = Arc::new(RwLock::new(()));
    loop {
        tokio::select! {
            Some(_) = sending.join_next(), if !sending.is_empty() => {}
            job = jobs.recv(), if sending.len() < sending_max => {
                let Some(job) = job else { break };
                if job.batch.is_alone {
                    let permit = Arc::clone(&alone).write_owned().await;
                    let sent = send(job);
                    sending.spawn(async move {
                        let _permit = permit;
                        sent.await;
                    });
                } else {
                    let permit = Arc::clone(&alone).read_owned().await;
                    let sent = send(job);
                    sending.spawn(async move {
                        let _permit = permit;
                        sent.await;
                    });
                }
            }
        }
    }
    let all = async { while sending.join_next().await.is_some() {} };
    let _ = timeout(STOP_TIME_MAX, all).await;
}

/// Batches that wait for their turn. More are returned to the caller.
const QUEUED_BATCHES_MAX: usize = 64;
/// Batches that are under way when the target is dropped get so long to end.
pub(crate) const STOP_TIME_MAX: Duration = Duration::from_secs(5);
