//! The log levels are part of the API. A logger is a process's own, so this runs in one of its own.

use std::sync::Mutex;
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use taskrunner::election::{Elector, MemoryStore};

use crate::support::{eventually, in_own_process};

const CAP: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);

/// Keeps what the library logs.
struct Kept(Mutex<Vec<(Level, String)>>);

static KEPT: Kept = Kept(Mutex::new(Vec::new()));

impl Log for Kept {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("taskrunner")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().expect("no panic").push((record.level(), record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// Waits until a message with these words was logged, and returns its level; forgets all up to it.
fn level_of(words: &str) -> Level {
    eventually(CAP, || {
        let mut kept = KEPT.0.lock().expect("no panic");
        match kept.iter().position(|(_, message)| message.contains(words)) {
            Some(at) => Ok(kept.drain(..=at).next_back().expect("it is there").0),
            None => Err(format!("{words:?} is not in {kept:?}")),
        }
    })
}

#[test]
fn every_change_is_logged_at_its_level_and_nothing_while_nothing_changes() {
    in_own_process("logging::every_change_is_logged_at_its_level_and_nothing_while_nothing_changes", || {
        log::set_logger(&KEPT).expect("the process has no other logger");
        log::set_max_level(LevelFilter::Debug);
        let store = MemoryStore::new();
        let (cuttable, switch) = store.with_switch();
        let elector = Elector::builder(cuttable, "demo")
            .ttl(200 * MS)
            .wait(200 * MS)
            .on_promote(|_| panic!("as planned"))
            .start()
            .expect("good options");
        assert_eq!(level_of("promoted, token"), Level::Info);
        assert_eq!(level_of("on_promote panicked"), Level::Warn);
        KEPT.0.lock().expect("no panic").clear();
        let renewals = elector.status().counters.renewals;
        eventually(CAP, || match elector.status().counters.renewals {
            now if now >= renewals + 5 => Ok(()),
            now => Err(now),
        });
        let kept = std::mem::take(&mut *KEPT.0.lock().expect("no panic"));
        // What a hook's panic is told as may come after the warning.
        let kept: Vec<_> = kept.into_iter().filter(|(_, message)| !message.contains("panicked")).collect();
        assert!(kept.is_empty(), "nothing has changed: {kept:?}");

        elector.step_down(Duration::ZERO).expect("the memory answers");
        assert_eq!(level_of("demoted, token"), Level::Info, "it was asked for");
        assert_eq!(level_of("promoted, token"), Level::Info);
        switch.cut();
        assert_eq!(level_of("demoted, token"), Level::Warn, "nobody asked for it");
        assert_eq!(level_of("could not connect"), Level::Debug);
        switch.mend();
        assert_eq!(level_of("promoted, token"), Level::Info);
        elector.stop().expect("the memory answers");
        assert_eq!(level_of("demoted, token"), Level::Info, "it was asked for");
    });
}
