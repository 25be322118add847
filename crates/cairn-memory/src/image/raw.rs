//! Raw bytes from a debug probe, without any description.

use std::sync::Arc;

use cairn_format::AbsoluteAddress;
use cairn_unwind::AddressRange;

use super::{
    About, Backing, FileBytes, FileState, Finding, Image, ImageError, ImageModule, Machine, OpenOptions,
    Packed, Parts, Piece, RawFile, modules,
};

pub(super) fn read(files: &[RawFile], machine: Machine, options: &OpenOptions) -> Result<Image, ImageError> {
    let mut parts = Parts::new(machine, About { kind: "raw memory", ..About::default() }, Vec::new());
    let last_address =
        if machine.word_size == cairn_format::WordSize::Bits64 { u64::MAX } else { u64::from(u32::MAX) + 1 };
    for (number, file) in files.iter().enumerate() {
        let failed = |source| ImageError::Open { path: file.path.clone(), source };
        let mut bytes = FileBytes::open(&file.path).map_err(failed)?;
        if let Some(packed) = Packed::of(&bytes) {
            let (unpacked, problem) = packed.unpack(&bytes, options.unpack_limit_bytes).map_err(failed)?;
            parts.findings.extend(problem.map(|problem| Finding::PackedCut { problem: problem.to_string() }));
            bytes = FileBytes::map(unpacked).map_err(failed)?;
        }
        let start = file.load_address;
        let end = start.value().saturating_add(bytes.len() as u64).min(last_address);
        if end.saturating_sub(start.value()) < bytes.len() as u64 {
            parts.findings.push(Finding::ImpossibleSegment { number, address: start });
        }
        parts.pieces.push(Piece {
            range: AddressRange::new(start, AbsoluteAddress::new(end)),
            is_writable: true,
            is_from_file: false,
            backing: Backing::File { file: parts.files.len(), offset: 0 },
        });
        parts.files.push(Arc::new(bytes));
    }
    if let Some(program) = &options.program {
        let bytes =
            FileBytes::open(program).map_err(|source| ImageError::Open { path: program.clone(), source })?;
        // A device's program is loaded at its stated address.
        let (range, build_id) = modules::stated_range(&bytes).ok_or(ImageError::NotAnImage {
            path: program.clone(),
            is: "a file without loadable segments",
        })?;
        parts.named.push(ImageModule {
            path: program.clone(),
            range,
            bias: 0,
            build_id,
            file: FileState::Same(program.clone()),
            pe: None,
            is_identified: true,
        });
    }
    Ok(Image::assemble(parts, options))
}
