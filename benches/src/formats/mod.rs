//! The cases: every format, both directions, cairn and whichever peers are there.
//!
//! A case checks its own result once, before any timing: what it encodes must decode to the input.

pub(crate) mod cbf;
mod cif;
mod heapprof;
mod lws;
mod text;
mod tracker;
mod xnu;

use std::hint::black_box;

use crate::corpus::{self, Program, Stacks};
use crate::lws_reference::LwsReference;
use crate::measure::Case;

/// The name of this project's implementation in the tables.
pub(crate) const CAIRN: &str = "cairn";

/// Addresses as recorded, 64 bits wide.
pub(crate) const REAL: &str = "real addresses";
/// Addresses moved below 2^31.
pub(crate) const LOW: &str = "low addresses";

/// Frames that a libwebsockets blob can hold.
const LWS_FRAMES: usize = 31;

/// Everything the cases work on, loaded once.
pub(crate) struct Inputs {
    pub(crate) programs: Vec<Program>,
    pub(crate) low_programs: Vec<Program>,
    pub(crate) real: Stacks,
    pub(crate) low: Stacks,
    /// The stacks cut to 31 frames.
    pub(crate) real_cut: Stacks,
    pub(crate) low_cut: Stacks,
    /// libwebsockets' code, or why it is missing.
    pub(crate) peer: Result<LwsReference, String>,
}

impl Inputs {
    pub(crate) fn load() -> Result<Self, String> {
        let programs = Program::load_all(&corpus::directory())?;
        let low_programs: Vec<Program> = programs.iter().map(Program::relocated_low).collect();
        let (real, low) = (corpus::joined(&programs), corpus::joined(&low_programs));
        let (real_cut, low_cut) = (real.innermost(LWS_FRAMES), low.innermost(LWS_FRAMES));
        Ok(Self { programs, low_programs, real, low, real_cut, low_cut, peer: LwsReference::load() })
    }
}

/// Adds the cases of one format.
type Add = for<'a> fn(&'a Inputs, &mut Vec<Case<'a>>);

/// The formats, by how the names of their operations begin.
const FORMATS: [(&str, Add); 7] = [
    ("cbf", cbf::add),
    ("lws", lws::add),
    ("~", text::add),
    ("cif", cif::add),
    ("xnu", xnu::add),
    ("heapprof", heapprof::add),
    ("tracker", tracker::add),
];

/// Returns all cases, those of one operation side by side.
pub(crate) fn cases(inputs: &Inputs) -> Vec<Case<'_>> {
    cases_of_format(inputs, "")
}

/// Returns the cases of the format that `id` is about; all of them if it is empty. Setting up the
/// others takes longer than one case runs.
pub(crate) fn cases_of_format<'a>(inputs: &'a Inputs, id: &str) -> Vec<Case<'a>> {
    let mut cases = Vec::new();
    for (_, add) in FORMATS.iter().filter(|(name, _)| id.is_empty() || id.starts_with(name)) {
        add(inputs, &mut cases);
    }
    cases
}

/// Returns the length of an encoder's output. Hides from the compiler that nobody reads it;
/// otherwise it would remove the writing.
pub(crate) fn used(output: &[u8]) -> u64 {
    black_box(output).len() as u64
}

/// Folds what a pass saw into one number.
pub(crate) fn fold(checksum: u64, value: u64) -> u64 {
    checksum.wrapping_add(value)
}

/// The size of every program's stacks in the formats that hold addresses alone.
pub(crate) fn print_bytes_per_frame(inputs: &Inputs) {
    println!("| program | stacks | frames | CBF | CBF, low | lws, 31 frames | lws, 31 frames, low | words |");
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for (real, low) in inputs.programs.iter().zip(&inputs.low_programs) {
        let cbf = |program: &Program| {
            let bytes: usize =
                program.stacks.iter().map(|stack| cbf::encoded_bytes(stack.addresses)[0]).sum();
            bytes as f64 / program.stacks.frames() as f64
        };
        let lws = |program: &Program| {
            let cut = program.stacks.innermost(LWS_FRAMES);
            let bytes: usize = cut.iter().map(lws::encoded_bytes).sum();
            bytes as f64 / cut.frames() as f64
        };
        let Program { name, stacks, .. } = real;
        println!(
            "| {name} | {} | {} | {:.3} | {:.3} | {:.3} | {:.3} | 8 |",
            stacks.len(),
            stacks.frames(),
            cbf(real),
            cbf(low),
            lws(real),
            lws(low)
        );
    }
}
