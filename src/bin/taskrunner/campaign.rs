//! `taskrunner campaign`: one candidate, and a line for each thing that happens to it.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, select};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::{Handle, Signals};
use taskrunner::election::{Elector, Error, ErrorKind, Event, RedisStore, Strict};

use crate::args::Campaign;
use crate::lines::{Format, Line, What};
use crate::{Failure, failed, print, sample, start_log, writer};

/// Contends until a signal comes.
pub(crate) fn run(options: &Campaign, out: &mut impl Write) -> Result<ExitCode, Failure> {
    start_log(match options.format {
        Format::Text => "warn",
        // A program that reads JSON is not told twice.
        Format::Json => "off",
    });
    let store = options.target.store().map_err(Failure::Usage)?;
    // Before the elector starts, so that a signal gives the lease back from the first command on.
    let (signals, watch) = watch_signals().map_err(|error| failed("cannot listen for signals", &error))?;
    let elector = start(options, store)?;
    let mut printer = Printer { out, format: options.format };
    thread::scope(|scope| {
        // In here, so that it is dropped before the scope waits for its threads, also when this one panics.
        let watch = watch;
        let elector = &elector;
        // This thread stops the elector by itself: a reader that lets the pipe fill up blocks all printing,
        // but does not keep the lease from being released.
        let (stopping, stopped) = bounded::<()>(0);
        let stopper = spawn(scope, "tr-stop", move || {
            let _stopping = stopping;
            wait_for_signal(signals);
            elector.stop()
        })?;
        let told = tell(scope, elector, options.sample, &stopped, &mut printer);
        drop(watch);
        let stopped = stopper.join().expect("stop() does not panic");
        let (ended, sampler) = told?;
        finish(ended, stopped, sampler, &mut printer)
    })
}

/// Prints what happens until the elector has ended. Fails as soon as a line cannot be written.
fn tell<'scope>(
    scope: &'scope Scope<'scope, '_>,
    elector: &'scope Elector,
    period: Option<Duration>,
    stopped: &Receiver<()>,
    printer: &mut Printer<'_, impl Write>,
) -> Result<(Ended, Sampler), Failure> {
    let events = elector.events();
    let (id, key) = (elector.id().to_owned(), elector.key().to_owned());
    printer.print(&Line::now(What::Started { id, key }))?;
    let sampler = Sampler::start(scope, elector, period)?;
    loop {
        let line = select! {
            // What is left was sent before stop() returned. Without an end among it the elector is held up.
            recv(stopped) -> _ => {
                for event in events.try_iter() {
                    match event {
                        Event::Stopped => return Ok((Ended::Stopped, sampler)),
                        event => if let Some(line) = Line::of_event(event) { printer.print(&line)? },
                    }
                }
                return Ok((Ended::Stopped, sampler));
            }
            recv(events) -> event => match event {
                // Its line is the last of all, and there is a reading to come.
                Ok(Event::Stopped) => return Ok((Ended::Stopped, sampler)),
                Ok(event) => Line::of_event(event),
                Err(_) => return Ok((Ended::Died, sampler)),
            },
            recv(sampler.lines) -> line => match line {
                Ok(line) => Some(line),
                Err(_) => return Err(Failure::Run("the sampling thread has ended".to_owned())),
            },
        };
        if let Some(line) = line {
            printer.print(&line)?;
        }
    }
}

/// How the events came to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// As they should.
    Stopped,
    /// They broke off.
    Died,
}

/// Prints the lines that are left after `stop()` returned `stopped`.
fn finish(
    ended: Ended,
    stopped: Result<(), Error>,
    sampler: Sampler,
    printer: &mut Printer<'_, impl Write>,
) -> Result<ExitCode, Failure> {
    for line in sampler.finish() {
        printer.print(&line)?;
    }
    if ended == Ended::Stopped {
        printer.print(&Line::now(What::Stopped))?;
    }
    match (stopped, ended) {
        (Err(error), _) => Err(Failure::Run(error.to_chain())),
        (Ok(()), Ended::Died) => Err(Failure::Run("the elector has ended by itself".to_owned())),
        (Ok(()), Ended::Stopped) => Ok(ExitCode::SUCCESS),
    }
}

fn start(options: &Campaign, store: RedisStore) -> Result<Elector, Failure> {
    let mut builder = Elector::builder(store, options.target.group.as_str())
        .ttl(options.ttl)
        .wait(options.wait)
        .jitter(options.jitter)
        .renew_error(options.on_renew_error.into());
    if let Some(stop_margin) = options.stop_margin {
        builder = builder.stop_margin(stop_margin);
    }
    if let Some(replicas) = options.strict {
        let strict = Strict::replicas(replicas);
        builder = builder.strict(options.longest_ttl.map_or(strict, |ttl| strict.longest_ttl(ttl)));
    }
    if let Some(id) = &options.id {
        builder = builder.name(id.as_str());
    }
    if let Some(path) = options.write_token.clone() {
        builder = builder.lead(move |leadership| writer::run(&leadership, &path));
    }
    builder.start().map_err(refused)
}

/// The thread that reads whether this instance leads, if it was asked for.
struct Sampler {
    quit: Sender<()>,
    lines: Receiver<Line>,
    /// Keeps `lines` open, and empty, where there is no thread to send any.
    idle: Option<Sender<Line>>,
}

impl Sampler {
    /// So many lines wait for a slow reader before the sampler waits for it too.
    const LINES_AHEAD: usize = 256;

    fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        elector: &'scope Elector,
        period: Option<Duration>,
    ) -> Result<Self, Failure> {
        let (quit, quitting) = bounded(0);
        let (made, lines) = bounded(Self::LINES_AHEAD);
        let Some(period) = period else {
            return Ok(Self { quit, lines, idle: Some(made) });
        };
        spawn(scope, "tr-sample", move || sample::run(elector, period, &quitting, &made))?;
        Ok(Self { quit, lines, idle: None })
    }

    /// The lines that are left. The last one is of a reading that was made after this call.
    fn finish(self) -> impl Iterator<Item = Line> {
        let Self { quit, idle, lines } = self;
        drop((quit, idle));
        lines.into_iter()
    }
}

struct Printer<'a, W> {
    out: &'a mut W,
    format: Format,
}

impl<W: Write> Printer<'_, W> {
    fn print(&mut self, line: &Line) -> Result<(), Failure> {
        print(self.out, line.render(self.format))
    }
}

/// Ends the wait for a signal when it is dropped.
struct Watch {
    handle: Handle,
    stopping: Arc<AtomicBool>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Nobody listens for the first signal any more, so already that one is to end the process.
        self.stopping.store(true, Ordering::SeqCst);
        self.handle.close();
    }
}

/// The first signal is told to [`wait_for_signal`]; from then on each has its default action.
fn watch_signals() -> io::Result<(Signals, Watch)> {
    let stopping = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order, for the first signal is not to find the flag that it sets.
        flag::register_conditional_default(signal, Arc::clone(&stopping))?;
        flag::register(signal, Arc::clone(&stopping))?;
    }
    let signals = Signals::new([SIGTERM, SIGINT])?;
    let handle = signals.handle();
    Ok((signals, Watch { handle, stopping }))
}

/// Returns when a signal has come or the [`Watch`] was dropped.
fn wait_for_signal(mut signals: Signals) {
    signals.forever().next();
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Failure> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, run)
        .map_err(|error| failed("cannot start a thread", &error))
}

/// What the library refuses before it has started anything is for the user to correct, unless the system
/// is the cause.
fn refused(error: Error) -> Failure {
    match error.kind() {
        ErrorKind::Configuration => Failure::Usage(error.to_chain()),
        _ => Failure::Run(error.to_chain()),
    }
}
