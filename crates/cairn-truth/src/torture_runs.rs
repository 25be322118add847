//! Runs `fixtures/programs/torture.cpp`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::driver::{Outcome, Workplace};
use crate::report::{Counter, Report};

/// The program and the two libraries of equal layout that it loads and unloads.
pub struct Torture {
    workplace: Workplace,
    program: PathBuf,
    libraries: [PathBuf; 2],
}

impl Torture {
    /// Builds the program and its libraries.
    ///
    /// # Errors
    ///
    /// The compiler's messages.
    pub fn build(name: &str) -> Outcome<Self> {
        let workplace = Workplace::new(name)?;
        let program = workplace.compile("torture.cpp", "torture", &["-O2", "-rdynamic"])?;
        let library = |frame: &str| {
            let flags = ["-O2", "-shared", "-fPIC", &format!("-DFRAME={frame}")];
            workplace.compile("module.c", &format!("module{frame}.so"), &flags)
        };
        let libraries = [library("400")?, library("600")?];
        Ok(Self { workplace, program, libraries })
    }

    /// Runs the program. In a cold start the first capture happens under signals.
    ///
    /// # Errors
    ///
    /// When it crashed, hung, or reported an incomplete stack as complete.
    pub fn run(&self, duration: Duration, is_warm: bool) -> Outcome<Report> {
        let mut command = Command::new(&self.program);
        command.arg(duration.as_millis().to_string()).arg(if is_warm { "warm" } else { "cold" });
        command.args(&self.libraries);
        let ended = self.workplace.run(&mut command, duration + Duration::from_secs(30))?;
        let report = &ended.report;
        let is_clean = ended.is_good()
            && report.count(Counter::BadEnd) == 0
            && report.count(Counter::Failed) == 0
            && report.count(Counter::Lost) == 0;
        if is_clean { Ok(ended.report) } else { Err(format!("{:?}: {report}", ended.status)) }
    }
}
