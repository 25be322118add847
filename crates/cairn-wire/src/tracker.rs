//! Recordings of tutorial-callstack-tracker: module loads, unloads and call stacks in the order in
//! which they happened.
//!
//! The tracker runs inside a Windows program, notes each DLL that comes and goes and each stack it
//! is asked to take, and leaves all symbols to a player that reads the recording later. A recording
//! is its events end to end, little-endian and packed, with nothing before or between them:
//!
//! ```text
//!   | code: u8 | timestamp: u64, nanoseconds since 1970 | body |
//!
//!   code 0, module loaded    | units: u16 | path: units × 2 bytes | base: word | size: u32 |
//!   code 1, module unloaded  | units: u16 | path: units × 2 bytes |
//!   code 2, call stack       | count: u16 | return addresses, innermost first: count × word |
//! ```
//!
//! A path is UTF-16 without a terminator; built for a system whose `wchar_t` has four bytes, it is
//! UTF-32. Neither that nor the word size (8 or 4 bytes) is written anywhere: give both as a
//! [`TrackerLayout`], or let [`TrackerLayout::guess`] try what reads the file to its end.
//!
//! - [`Reader`] iterates over the events; [`Writer`] makes recordings.
//! - [`Timeline`] follows the modules and resolves each address of a stack to the module and the
//!   offset it had *at that place of the file*. Timestamps are wall clock and may go back; the
//!   order in the file is the order of truth.
//!
//! ```
//! use cairn_format::{AbsoluteAddress, ModuleOffset, SliceSink};
//! use cairn_wire::tracker::{Change, TrackerLayout, ModuleSlot, Reader, Timeline, Writer};
//! let mut buffer = [0; 100];
//! let mut writer = Writer::new(SliceSink::new(&mut buffer), TrackerLayout::WINDOWS_64);
//! writer.module_loaded(1_000, r"C:\app.exe", AbsoluteAddress::new(0x7ff6_0000_0000), 0x3000)?;
//! writer.stack(2_000, [0x7ff6_0000_0123, 0x10].map(AbsoluteAddress::new))?;
//! let recording = writer.into_sink().into_written();
//!
//! let mut slots = [ModuleSlot::EMPTY; 8];
//! let mut timeline = Timeline::new(Reader::new(recording, TrackerLayout::WINDOWS_64), &mut slots);
//! while let Some(step) = timeline.step() {
//!     if let Change::Stack(stack) = step?.change {
//!         let places: Vec<_> = stack.frames().map(|frame| frame.place.map(|place| place.offset)).collect();
//!         assert_eq!(places, [Some(ModuleOffset::new(0x123)), None]);
//!     }
//! }
//! assert_eq!(timeline.modules()[0].path.to_string(), r"C:\app.exe");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Surprises of the reference
//!
//! - When its 1 MiB buffer is full, the recorder drops each *part* of an event that does not fit
//!   but still writes smaller parts after it, so the tail of such a recording is out of step. Its
//!   last byte is never used.
//! - The player skips an event of unknown code after its first 9 bytes, out of step from there; it
//!   delivers a cut stack with no addresses, and drops other cut events silently.
//!   [`Reader::like_reference`] does the same.
//! - A module loaded over another takes the other's *range* in the player, and with it addresses
//!   that are not its own. [`Timeline::like_reference`] does the same.
//! - Modules are usually listed twice at the start: once by the notification and once by the
//!   enumeration.
//! - The recorder keeps at most 200 addresses. The player has room for 1024 characters of path and
//!   does not check.

mod path;
mod reader;
mod timeline;
mod tree;
mod writer;

pub use path::{CharWidth, Chars, ModulePath};
pub use reader::{
    Event, Guess, Reader, StackAddresses, TrackerLayout, TrackerReadError, TrackerReadErrorKind,
    TrackerRecord,
};
pub use timeline::{
    Change, EventPlace, Finding, ModulePlace, ModuleSlot, ResolvedFrame, ResolvedStack, Step, Timeline,
    TimelineError, TimelineErrorKind,
};
pub use writer::{
    MAX_PATH_UNITS, MAX_STACK_ADDRESSES, PathText, TrackerWriteError, TrackerWriteErrorKind, Writer,
};
