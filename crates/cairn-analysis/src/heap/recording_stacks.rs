//! The stacks of a recording, as the questions need them.

use std::collections::HashMap;

use super::recording_fold::MOST_NANOS;
use super::sampling::Sampling;
use super::stacks::{Address, InterpretedCode, Module, NO_FRAMES, Stacks};
use crate::code_names;
use cairn_recording::{PcId, PcKind, Recording, StackId};
use cairn_symbols::{GeneratedNames, SeenAddress, SourceFrame};

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

/// Names addresses outside of modules, by number, from what JIT compilers announced.
pub(crate) fn generated_names(recording: &Recording) -> HashMap<u32, SourceFrame> {
    generated_names_of(recording, &used_pcs(recording))
}

fn generated_names_of(recording: &Recording, used: &[Option<PcId>]) -> HashMap<u32, SourceFrame> {
    let generated = recording.generated_code();
    if generated.is_empty() {
        return HashMap::new();
    }
    let (mut numbers, mut seen) = (Vec::new(), Vec::new());
    for &pc in used.iter().flatten() {
        let Some(frame) = recording.frame(pc) else { continue };
        let lookup = code_names::lookup_address(frame.kind, frame.address.value());
        if let (Some(address), cairn_recording::Place::Absolute(_)) = (lookup, frame.place) {
            numbers.push(pc.number());
            seen.push(SeenAddress { address, pieces_before: generated.pieces_before(pc) });
        }
    }
    let found = GeneratedNames::new(generated.pieces().map(code_names::piece)).resolve(&seen);
    numbers.into_iter().zip(found).filter_map(|(number, frame)| Some((number, frame?))).collect()
}

/// The addresses that occur in stacks, by number; tables of a damaged file have gaps.
fn used_pcs(recording: &Recording) -> Vec<Option<PcId>> {
    let tree = recording.stacks();
    let mut used = vec![None; tree.pcs_len()];
    for pc in tree.ids().filter_map(|id| tree.pc(id)) {
        if let Some(place) = used.get_mut(pc.index()) {
            *place = Some(pc);
        }
    }
    used
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
        stacks.add_code(number, InterpretedCode::of_recording(code));
    }
    stacks.reserve(tree.len(), tree.pcs_len());
    // The numbers of addresses and stacks stay as they are; tables of a damaged file have gaps.
    let unknown = Address { kind: PcKind::ReturnAddress, absolute: 0, stated: 0, module: None };
    let used = used_pcs(recording);
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
    for (number, frame) in generated_names_of(recording, &used) {
        stacks.name_generated(number, frame);
    }
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
