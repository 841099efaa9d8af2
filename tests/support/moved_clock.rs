//! Tests in processes of their own, whose system clocks stand still until the test moves them.

use std::env;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use crate::redis_server::Folder;
use crate::repository;

/// The environment variable with the path of the file of [`moved_clock.c`](../moved_clock.c).
const FILE: &str = "MOVED_CLOCK";

/// The system clocks of this process, and of the servers that it starts.
pub struct MovedClock {
    file: File,
}

impl MovedClock {
    /// Runs a test in a process whose clocks it can move, and panics if it fails there. `test` is its path in the
    /// program, such as `system_clock::a_test`.
    ///
    /// # Panics
    ///
    /// Panics if there is no C compiler, which links Rust programs too.
    pub fn run(test: &str, body: impl AsyncFnOnce(Self)) {
        if let Some(path) = env::var_os(FILE) {
            let file = OpenOptions::new().read(true).write(true).open(path).expect("the file of the clocks");
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            return runtime.block_on(body(Self { file }));
        }
        let folder = Folder::new();
        let library = folder.path().join("moved_clock.so");
        let mut compiler = Command::new("cc");
        let compiled = compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library);
        let status = compiled.arg(repository("tests/support/moved_clock.c")).status().expect("a C compiler");
        assert!(status.success(), "cc: {status}");
        // 20 March 2026, 20:00 UTC, a day after the machine has started.
        let [wall, boot] = [1_774_036_800_i64, 86_400].map(|seconds| seconds * 1_000_000_000);
        let file = folder.write("clocks", [wall, boot].map(i64::to_ne_bytes).as_flattened());
        let mut program = Command::new(env::current_exe().expect("a path to this test"));
        let status = program
            .args([test, "--exact", "--nocapture"])
            .env("LD_PRELOAD", library)
            .env(FILE, file)
            .output()
            .expect("this test runs");
        let output = String::from_utf8_lossy(&status.stdout) + String::from_utf8_lossy(&status.stderr);
        assert!(status.status.success() && output.contains("1 passed"), "{test}: {}\n{output}", status.status);
    }

    /// Lets the machine sleep. Neither `CLOCK_MONOTONIC` nor Tokio's timers notice.
    pub fn suspend(&self, span: Duration) {
        self.shift(0, span.as_nanos() as i64);
        self.shift(1, span.as_nanos() as i64);
    }

    /// Steps the wall clock forward.
    pub fn step_forward(&self, span: Duration) {
        self.shift(0, span.as_nanos() as i64);
    }

    /// Steps the wall clock back.
    pub fn step_back(&self, span: Duration) {
        self.shift(0, -(span.as_nanos() as i64));
    }

    fn shift(&self, clock: u64, nanos: i64) {
        let mut now = [0; 8];
        self.file.read_exact_at(&mut now, 8 * clock).expect("a clock");
        let moved = i64::from_ne_bytes(now) + nanos;
        self.file.write_all_at(&moved.to_ne_bytes(), 8 * clock).expect("a clock");
    }
}
