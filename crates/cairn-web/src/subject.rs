//! The facts of a heap beside its sums; of files of other tools, as much as they hold.

use cairn_analysis::heap::{About, HeapRecording, Stacks, Unfreed};
use cairn_analysis::source::HeapSource;
use cairn_recording::{EndReason, Recording};

pub use cairn_analysis::source::Times;

/// A module that was loaded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PageModule {
    /// Its path.
    pub path: String,
    /// Its build id; empty when it has none.
    pub build_id: Vec<u8>,
    /// How large it was; 0 when that is not known.
    pub size_bytes: u64,
    /// When it was loaded.
    pub loaded_nanos: u64,
    /// When it was unloaded, if it was.
    pub unloaded_nanos: Option<u64>,
}

/// A thread of the program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PageThread {
    /// Its number in the kernel.
    pub kernel_thread: u32,
    /// Its name.
    pub name: String,
    /// When it began.
    pub began_nanos: u64,
    /// When it ended, if it did.
    pub ended_nanos: Option<u64>,
}

/// The facts of a heap beside its sums, as a page shows them.
#[derive(Clone, PartialEq, Debug, Default)]
#[non_exhaustive]
pub struct PageSubject {
    /// The words of the command line.
    pub command: Vec<String>,
    /// The process; 0 when that is not known.
    pub process: u32,
    /// When it began, in nanoseconds since 1970; 0 when that is not known.
    pub started_wall_nanos: u64,
    /// How it ended, where that is known.
    pub end: Option<EndReason>,
    /// The kind of blocks that were not freed.
    pub unfreed: Unfreed,
    /// Most resident memory of the process, by the kernel's count, cairn's own included.
    pub peak_resident_bytes: Option<u64>,
    /// How long the program has run beyond what was read of its recording, while the rest of that
    /// is read.
    pub behind_nanos: Option<u64>,
    /// How much its events record of time.
    pub times: Times,
    /// Its modules.
    pub modules: Vec<PageModule>,
    /// Its threads, in the order of a profile's
    /// [`threads`](cairn_analysis::heap::HeapProfile::threads).
    pub threads: Vec<PageThread>,
    /// Limits and damage of the file: a sentence each.
    pub findings: Vec<String>,
}

impl PageSubject {
    /// Describes a recording, whose modules and threads have times.
    #[must_use]
    pub fn recorded(recording: &Recording, about: &About) -> Self {
        let module = |module: &cairn_recording::Module| PageModule {
            path: module.path_text().to_string(),
            build_id: module.build_id.clone(),
            size_bytes: module.size_bytes(),
            loaded_nanos: module.loaded_nanos,
            unloaded_nanos: module.unloaded_nanos,
        };
        let thread = |thread: &cairn_recording::Thread| PageThread {
            kernel_thread: thread.kernel_thread,
            name: String::from_utf8_lossy(&thread.name).into_owned(),
            began_nanos: thread.began_nanos,
            ended_nanos: thread.ended_nanos,
        };
        Self {
            command: about.command.clone(),
            process: about.process,
            started_wall_nanos: about.started_wall_nanos,
            end: about.end,
            unfreed: about.unfreed,
            peak_resident_bytes: about.peak_resident_bytes,
            behind_nanos: None,
            times: Times::All,
            modules: recording.modules().iter().map(module).collect(),
            threads: recording.threads().iter().map(thread).collect(),
            findings: about.findings.clone(),
        }
    }

    /// Describes a file of another tool, whose modules and threads have no times.
    #[must_use]
    pub fn of(about: &About, stacks: &Stacks, times: Times) -> Self {
        let module = |module: &cairn_analysis::heap::Module| PageModule {
            path: module.path.clone(),
            build_id: module.build_id.clone(),
            ..PageModule::default()
        };
        let thread = |thread: &cairn_analysis::heap::ThreadName| PageThread {
            kernel_thread: thread.kernel_thread,
            name: thread.name.clone(),
            ..PageThread::default()
        };
        Self {
            command: about.command.clone(),
            process: about.process,
            started_wall_nanos: about.started_wall_nanos,
            end: about.end,
            unfreed: about.unfreed,
            peak_resident_bytes: about.peak_resident_bytes,
            behind_nanos: None,
            times,
            modules: stacks.modules().iter().map(module).collect(),
            threads: about.threads.iter().map(thread).collect(),
            findings: about.findings.clone(),
        }
    }
}

impl From<&HeapRecording> for PageSubject {
    fn from(heap: &HeapRecording) -> Self {
        Self::recorded(heap.recording(), &heap.about())
    }
}

impl From<&HeapSource> for PageSubject {
    fn from(source: &HeapSource) -> Self {
        match source.recording() {
            Some(heap) => Self::from(heap),
            None => Self::of(&source.about(), source.stacks(), source.times()),
        }
    }
}
