//! What Linux tells about a process.

use std::fs;

pub(crate) use super::server::{freeze, signal, thaw};

/// The names of the process's threads, sorted. The kernel keeps the first 15 bytes of each, and lists a thread
/// for a moment after it was joined.
pub(crate) fn thread_names(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    let mut names: Vec<_> = tasks
        .flatten()
        // A thread that ends between the listing and the look is no thread.
        .filter_map(|task| fs::read_to_string(task.path().join("comm")).ok())
        .map(|name| name.trim_end().to_owned())
        .collect();
    names.sort();
    names
}

/// How many file descriptors the process has open. Asked about the own process, it counts the one it looks with.
pub(crate) fn fd_count(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives").count()
}

/// The process's resident memory in kB.
pub(crate) fn rss_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a live process has VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("VmRSS is a number of kB")
}
