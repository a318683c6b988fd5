//! Threads: one persistent, pinned thread per worker, driven by commands.
//!
//! A worker is opened in its own thread, after pinning, so that its memory lies near its CPU; it lives until its port is
//! dropped, across trials. Commands and answers go through channels; nothing here is in the hot path.

use std::{
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use crate::{
    clock::Instant,
    engine::{Bound, counters::WorkerCounters},
    error::{Error, Result},
    host::scheduling,
    program::TxProgram,
};

/// One trial, as a worker gets it.
#[derive(Debug, Clone)]
pub struct Trial {
    /// When to start.
    pub start: Instant,
    /// When to end, whatever is left.
    pub end: Instant,
    /// Frames/s of the port over all workers; `None` = as fast as possible.
    pub load_fps: Option<u64>,
    /// Frames of each stream over all workers, if their number is exact.
    pub counts: Option<Arc<[u64]>>,
}

/// How a worker's trial ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerEnd {
    /// From the trial's start to the end of sending.
    pub sent_for_ns: u64,
    /// Frames that had not completed when the worker gave up waiting.
    pub outstanding_frames: u64,
    /// What broke the queue (the interface was removed, say); the counts up to there stand.
    pub error: Option<Error>,
}

/// A worker that lives in its thread.
pub trait TxWorker {
    /// Takes a new program; it fits what the worker was opened for.
    ///
    /// # Errors
    /// The backend cannot send it.
    fn load(&mut self, program: &TxProgram, counters: Arc<WorkerCounters>) -> Result<()>;

    /// Runs a trial to its end.
    fn run(&mut self, trial: &Trial) -> WorkerEnd;
}

enum Command {
    Load(Arc<TxProgram>, Arc<WorkerCounters>),
    Run(Trial),
}

#[derive(Debug)]
enum Answer {
    Opened(Result<Bound>),
    Loaded(Result<()>),
    Ended(WorkerEnd),
}

/// The control side of a worker's thread.
#[derive(Debug)]
pub(super) struct WorkerHandle {
    name: String,
    commands: Option<mpsc::Sender<Command>>,
    answers: mpsc::Receiver<Answer>,
    /// An answer that has come and nobody has asked for yet.
    early: Option<Answer>,
    thread: Option<JoinHandle<()>>,
}

impl WorkerHandle {
    /// Starts a thread that pins itself to `cpu`, opens its worker and waits for commands.
    ///
    /// # Errors
    /// No thread could be made. Whether the worker opened is told by [`WorkerHandle::opened`].
    pub fn spawn<W: TxWorker>(
        name: String,
        cpu: Option<usize>,
        open: impl FnOnce() -> Result<(W, Bound)> + Send + 'static,
    ) -> Result<WorkerHandle> {
        let (commands, inbox) = mpsc::channel();
        let (outbox, answers) = mpsc::channel();
        let body = move || {
            if let Err(error) = scheduling::favour_this_thread() {
                tracing::debug!(%error, "a worker runs at ordinary priority");
            }
            let opened = pin(cpu).and_then(|()| open());
            match opened {
                Ok((worker, bound)) => {
                    let _ = outbox.send(Answer::Opened(Ok(bound)));
                    obey(worker, &inbox, &outbox);
                }
                Err(error) => {
                    let _ = outbox.send(Answer::Opened(Err(error)));
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name(name.clone())
            .spawn(body)
            .map_err(|cause| Error::environment("start", format!("thread {name}")).os(&cause))?;
        Ok(WorkerHandle { name, commands: Some(commands), answers, early: None, thread: Some(thread) })
    }

    /// Waits until the worker is open.
    pub fn opened(&mut self, within: Duration) -> Result<Bound> {
        match self.answer(within)? {
            Answer::Opened(bound) => bound,
            _ => Err(self.lost()),
        }
    }

    /// Gives the worker a new program.
    pub fn load(&mut self, program: Arc<TxProgram>, counters: Arc<WorkerCounters>, within: Duration) -> Result<()> {
        self.command(Command::Load(program, counters))?;
        match self.answer(within)? {
            Answer::Loaded(loaded) => loaded,
            _ => Err(self.lost()),
        }
    }

    /// Starts a trial.
    pub fn run(&self, trial: Trial) -> Result<()> {
        self.command(Command::Run(trial))
    }

    /// Waits for the trial's end.
    pub fn ended(&mut self, within: Duration) -> Result<WorkerEnd> {
        match self.answer(within)? {
            Answer::Ended(end) => Ok(end),
            _ => Err(self.lost()),
        }
    }

    fn command(&self, command: Command) -> Result<()> {
        let commands = self.commands.as_ref().ok_or_else(|| self.lost())?;
        commands.send(command).map_err(|_| self.lost())
    }

    /// Whether the trial's end can be had without waiting.
    pub fn has_ended(&mut self) -> bool {
        if self.early.is_none() {
            match self.answers.try_recv() {
                Ok(answer) => self.early = Some(answer),
                Err(cause) => return cause == mpsc::TryRecvError::Disconnected,
            }
        }
        true
    }

    fn answer(&mut self, within: Duration) -> Result<Answer> {
        if let Some(answer) = self.early.take() {
            return Ok(answer);
        }
        self.answers.recv_timeout(within).map_err(|_| self.lost())
    }

    fn lost(&self) -> Error {
        Error::environment("reach", format!("worker {}", self.name)).because("it did not answer in time or has ended")
    }
}

impl Drop for WorkerHandle {
    /// Ends the thread; a running trial must have been stopped before.
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn obey(mut worker: impl TxWorker, inbox: &mpsc::Receiver<Command>, outbox: &mpsc::Sender<Answer>) {
    while let Ok(command) = inbox.recv() {
        let answer = match command {
            Command::Load(program, counters) => Answer::Loaded(worker.load(&program, counters)),
            Command::Run(trial) => Answer::Ended(worker.run(&trial)),
        };
        if outbox.send(answer).is_err() {
            return;
        }
    }
}

/// Pins the calling thread.
fn pin(cpu: Option<usize>) -> Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).map_err(|cause| {
        Error::environment("pin a worker to", format!("CPU {cpu}"))
            .os(&cause.into())
            .remedy("choose CPUs that this process may use (taskset -p shows them)")
    })
}
