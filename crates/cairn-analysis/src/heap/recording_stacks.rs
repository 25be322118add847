//! The stacks of a recording, as the questions need them.

use std::collections::HashMap;
use std::sync::Arc;

use super::recording_fold::MOST_NANOS;
use super::sampling::Sampling;
use super::stacks::{Address, InterpretedCode, Module, NO_FRAMES, Stacks};
use cairn_recording::{CodeFileKind, PcId, PcKind, Recording, StackId};
use cairn_symbols::{GeneratedFormat, GeneratedNames, GeneratedPiece, SeenAddress};

/// How long a recording lasted, as far as it is known without reading events.
pub(super) fn end_nanos(recording: &Recording) -> Option<u64> {
    recording.end().map(|(_, nanos)| nanos).filter(|&nanos| nanos < MOST_NANOS)
}

/// How the allocations of a recording were chosen.
pub(super) fn sampling(recording: &Recording) -> Sampling {
    let sampled =
        recording.fact("sample_bytes").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    match sampled {
        Some(mean_bytes) if mean_bytes > 0 => Sampling::Poisson { mean_bytes },
        _ => Sampling::All,
    }
}

/// Names the addresses outside of modules, where JIT compilers have said what is there.
fn name_generated_code(recording: &Recording, pcs: &[Option<PcId>], stacks: &mut Stacks) {
    let generated = recording.generated_code();
    if generated.is_empty() {
        return;
    }
    let pieces = generated.pieces().map(|piece| GeneratedPiece {
        format: match piece.kind {
            CodeFileKind::PerfMap => GeneratedFormat::PerfMap,
            CodeFileKind::JitDump => GeneratedFormat::JitDump,
        },
        file: piece.file,
        bytes: &piece.bytes,
    });
    let (mut numbers, mut seen) = (Vec::new(), Vec::new());
    for ((number, pc), address) in (0..).zip(pcs).zip(stacks.addresses()) {
        let back = match address.kind {
            PcKind::ReturnAddress | PcKind::ReturnWithoutTables => 1,
            PcKind::ProgramCounter => 0,
            _ => continue,
        };
        if let (None, Some(pc)) = (address.module, *pc) {
            let pieces_before = generated.pieces_before(pc);
            numbers.push(number);
            seen.push(SeenAddress { address: address.absolute.saturating_sub(back), pieces_before });
        }
    }
    let found = GeneratedNames::new(pieces).resolve(&seen);
    for (number, frame) in numbers.into_iter().zip(found) {
        if let Some(frame) = frame {
            stacks.name_generated(number, frame);
        }
    }
}

/// Its stacks; equal files that were loaded several times are one module.
pub(super) fn stacks(recording: &Recording) -> Stacks {
    let mut stacks = Stacks::new();
    let mut modules: HashMap<(String, Vec<u8>), u32> = HashMap::new();
    let mut module_indices: HashMap<cairn_recording::ModuleId, u32> = HashMap::new();
    for module in recording.modules() {
        let path = module.path_text().into_owned();
        let key = (path.clone(), module.build_id.clone());
        let index = *modules
            .entry(key)
            .or_insert_with(|| stacks.add_module(Module { path, build_id: module.build_id.clone() }));
        module_indices.insert(module.id, index);
    }
    let executable = recording.fact("executable").map(String::from_utf8_lossy);
    let is_program = |module: &Module| executable.as_deref() == Some(module.path.as_str());
    if let Some(program) = stacks.modules().iter().position(is_program) {
        stacks.set_program(program as u32);
    }
    let tree = recording.stacks();
    for (number, code) in tree.codes() {
        let text = |bytes: &[u8]| Arc::from(String::from_utf8_lossy(bytes));
        let (first_line, format) = (code.first_line, code.format);
        let line_table = code.line_table.clone();
        let (file, function) = (text(&code.file), text(&code.name));
        stacks.add_code(number, InterpretedCode { file, function, first_line, format, line_table });
    }
    stacks.reserve(tree.len(), tree.pcs_len());
    // The numbers of addresses and stacks stay as they are; tables of a damaged file have gaps.
    let mut used: Vec<Option<PcId>> = vec![None; tree.pcs_len()];
    for pc in tree.ids().filter_map(|id| tree.pc(id)) {
        if let Some(place) = used.get_mut(pc.index()) {
            *place = Some(pc);
        }
    }
    let unknown = Address { kind: PcKind::ReturnAddress, absolute: 0, stated: 0, module: None };
    for &pc in &used {
        let frame = pc.and_then(|pc| recording.frame(pc));
        stacks.add_address(frame.map_or(unknown, |frame| {
            let (module, bias) = match frame.place {
                cairn_recording::Place::Module(module, offset) => {
                    let bias = recording.module(module).map_or(0, |module| module.bias);
                    (module_indices.get(&module).map(|&index| (index, offset.value())), bias)
                }
                cairn_recording::Place::Absolute(_) => (None, 0),
            };
            let absolute = frame.address.value();
            // A frame of an interpreter is no address of a file.
            let is_native = frame.kind != PcKind::Interpreted;
            let stated = if is_native { absolute.wrapping_sub(bias) } else { 0 };
            Address { kind: frame.kind, absolute, stated, module }
        }));
    }
    name_generated_code(recording, &used, &mut stacks);
    for number in 1..tree.len() as u32 {
        let id = StackId::from_number(number);
        let parent = tree.parent(id).map_or(NO_FRAMES, StackId::number);
        let added = tree.pc(id).and_then(|pc| stacks.add_stack(parent, pc.number()));
        if added.is_none() {
            stacks.skip();
        }
    }
    stacks
}
