//! A write every few milliseconds while leading: what a resource sees of a leader that is slow to learn that
//! it leads no more.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use crossbeam_channel::select;
use taskrunner::election::Leadership;

/// The work that each write stands for: so old is the check when the write goes out.
const WORK: Duration = Duration::from_millis(3);

/// Writes the term's token to the socket at `path`, one decimal line a datagram, until the term is lost.
///
/// A socket that is missing, full or closed costs the write and nothing else; each is addressed anew.
pub(crate) fn run(leadership: &Leadership, path: &Path) {
    let line = format!("{}\n", leadership.token());
    let mut socket = None;
    loop {
        // Past its deadline the term is ended by the elector: work that returns by itself would step down.
        let checked = leadership.check().is_ok();
        select! {
            recv(leadership.lost()) -> _ => return,
            default(WORK) => {}
        }
        if checked {
            socket = socket.or_else(open);
            if let Some(socket) = &socket {
                // Whoever reads at the other end, or does not, is no business of the election.
                socket.send_to(line.as_bytes(), path).ok();
            }
        }
    }
}

/// A socket that never blocks; none if the process has too many open files.
fn open() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::thread;
    use std::time::Instant;

    use taskrunner::election::{Elector, MemoryStore};
    use tempfile::TempDir;

    use super::*;

    /// Longer than anything takes that is to happen, on the slowest machine.
    const CAP: Duration = Duration::from_secs(30);

    /// Long enough for some writes to be tried, where nothing tells that they were.
    const SEVERAL_WRITES: Duration = Duration::from_millis(50);

    /// An elector whose lead work is to write.
    fn writing() -> (TempDir, PathBuf, Elector) {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("resource");
        let target = path.clone();
        let elector = Elector::builder(MemoryStore::new(), "writer")
            .lead(move |leadership| run(&leadership, &target))
            // The term stands on a machine that stands still.
            .ttl(CAP * 2)
            .lead_grace(CAP)
            .start()
            .expect("the options are good");
        (dir, path, elector)
    }

    fn lead(elector: &Elector) -> Leadership {
        elector.wait_for_leadership(CAP).expect("there is no other instance")
    }

    fn resource(path: &Path) -> UnixDatagram {
        let resource = UnixDatagram::bind(path).expect("the directory is writable");
        resource.set_read_timeout(Some(CAP)).expect("a timeout can be set");
        resource
    }

    fn next(resource: &UnixDatagram) -> String {
        let mut buffer = [0; 64];
        let length = resource.recv(&mut buffer).expect("a write comes");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    }

    fn end(elector: &Elector) {
        elector.stop().expect("the work returns when its term is lost");
    }

    #[test]
    fn the_token_is_written_again_and_again_until_the_term_is_lost() {
        let (_dir, path, elector) = writing();
        let resource = resource(&path);
        let line = format!("{}\n", lead(&elector).token());
        for _ in 0..5 {
            assert_eq!(next(&resource), line);
        }
        end(&elector);
        resource.set_nonblocking(true).expect("a socket can be non-blocking");
        while resource.recv(&mut [0; 64]).is_ok() {}
        resource.set_nonblocking(false).expect("a socket can block");
        resource.set_read_timeout(Some(SEVERAL_WRITES)).expect("a timeout can be set");
        resource.recv(&mut [0; 64]).expect_err("nobody leads");
    }

    #[test]
    fn a_resource_that_comes_late_or_again_is_written_to_in_the_same_term() {
        let (_dir, path, elector) = writing();
        let leadership = lead(&elector);
        let line = format!("{}\n", leadership.token());
        for _ in 0..2 {
            thread::sleep(SEVERAL_WRITES);
            let resource = resource(&path);
            assert_eq!(next(&resource), line);
            drop(resource);
            std::fs::remove_file(&path).expect("the socket's file was there");
        }
        assert!(leadership.is_valid(), "the election is not touched");
        end(&elector);
    }

    #[test]
    fn a_resource_that_nobody_reads_does_not_hold_up_the_way_out() {
        let (_dir, path, elector) = writing();
        let resource = resource(&path);
        let leadership = lead(&elector);
        let filler = UnixDatagram::unbound().expect("a socket can be opened");
        filler.set_nonblocking(true).expect("a socket can be non-blocking");
        let from = Instant::now();
        while filler.send_to(b"1\n", &path).is_ok() {
            assert!(from.elapsed() < CAP, "no socket takes everything");
        }
        thread::sleep(SEVERAL_WRITES);
        assert!(leadership.is_valid(), "the election is not touched");
        end(&elector);
        drop(resource);
    }
}
