//! A process that is a test binary, started again. It is killed when it is dropped.

use std::process::{Child, Command, Stdio};

pub struct Process(Child);

impl Process {
    /// Starts a test of this binary that is otherwise ignored, with environment variables.
    pub fn start(test: &str, variables: &[(&str, String)]) -> Self {
        let process = Command::new(std::env::current_exe().expect("a path to this test"))
            .args([test, "--exact", "--ignored"])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(process.expect("a process"))
    }

    pub fn signal(&self, signal: &str) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().expect("kill runs").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
