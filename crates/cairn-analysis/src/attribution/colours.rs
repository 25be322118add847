//! The colours of owners in pictures: the same on the page and in flame graphs, light and dark.
//!
//! The tests check the reasons of the choice: text on each fill has the contrast that WCAG
//! requires, and any two fills are apart for readers who see all colours, and for those who do not
//! see red, green or blue. More than eight would not be: three libraries have their own colour, and
//! the others share one.

use std::fmt::Write;

use super::{Owner, OwnerKind};

/// A group of owners that share a colour.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OwnerColour {
    /// The word for it in style sheets.
    pub class: &'static str,
    /// The fill on a light page, as CSS has it.
    pub light: &'static str,
    /// The fill on a dark page.
    pub dark: &'static str,
}

const fn colour(class: &'static str, light: &'static str, dark: &'static str) -> OwnerColour {
    OwnerColour { class, light, dark }
}

/// Libraries that have a colour of their own, the largest ones of a picture.
pub const COLOURED_LIBRARIES: usize = 3;

/// All groups, in the order of legends; the shared one of libraries comes behind their own.
pub const OWNER_COLOURS: [OwnerColour; 8] = [
    colour("mine", "#d38839", "#d47027"),
    colour("library-1", "#8bbffe", "#448cbb"),
    colour("library-2", "#b283c8", "#cb83ed"),
    colour("library-3", "#5aac88", "#79ddc1"),
    colour("library", "#bddbf4", "#93bacc"),
    colour("standard", "#f9edd2", "#877f73"),
    colour("interpreter", "#e7d077", "#b9b778"),
    colour("unknown", "#bbbcbb", "#979799"),
];

/// The text on a frame. It is dark on a dark page as well: fills that are light enough for it are
/// further apart than those that are dark enough for a light text.
pub const FRAME_TEXT: &str = "#111111";

/// The place of an owner in [`OWNER_COLOURS`].
///
/// `libraries` has the names of those with a colour of their own.
#[must_use]
pub fn colour_of(owner: &Owner, libraries: &[&str]) -> usize {
    const FIRST_LIBRARY: usize = 1;
    match owner.kind {
        OwnerKind::Mine => 0,
        OwnerKind::Library => {
            let place = libraries.iter().take(COLOURED_LIBRARIES).position(|name| *name == &*owner.name);
            FIRST_LIBRARY + place.unwrap_or(COLOURED_LIBRARIES)
        }
        OwnerKind::StandardLibrary | OwnerKind::Runtime | OwnerKind::Wrapper | OwnerKind::Allocator => 5,
        OwnerKind::Interpreter => 6,
        OwnerKind::Unknown => 7,
    }
}

/// Writes the colours as variables of a page: `--owner-mine: #d38839; …`.
#[must_use]
pub fn owner_variables(is_dark: bool) -> String {
    let mut text = String::new();
    for OwnerColour { class, light, dark } in OWNER_COLOURS {
        let _ = write!(text, "--owner-{class}: {}; ", if is_dark { dark } else { light });
    }
    text
}

/// Writes the colours as fills of classes, for pictures: `.mine { fill: #d38839; } …`.
#[must_use]
pub fn owner_classes(is_dark: bool) -> String {
    let mut text = String::new();
    for OwnerColour { class, light, dark } in OWNER_COLOURS {
        let _ = writeln!(text, ".{class} {{ fill: {}; }}", if is_dark { dark } else { light });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red, green and blue as amounts of light.
    fn light(colour: &str) -> [f64; 3] {
        let digits = colour.strip_prefix('#').unwrap_or(colour);
        [0, 2, 4].map(|at| {
            let value = f64::from(u8::from_str_radix(&digits[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        })
    }

    /// The contrast ratio of WCAG 2.
    fn contrast(a: &str, b: &str) -> f64 {
        let luminance = |colour: &str| {
            let [red, green, blue] = light(colour);
            0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05
        };
        let (a, b) = (luminance(a), luminance(b));
        if a > b { a / b } else { b / a }
    }

    /// Colour vision: all colours, without red, green or blue cones (Machado and others, 2009).
    const VISIONS: [(&str, [[f64; 3]; 3]); 4] = [
        ("all colours", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "protanopia",
            [
                [0.152286, 1.052583, -0.204868],
                [0.114503, 0.786281, 0.099216],
                [-0.003882, -0.048116, 1.051998],
            ],
        ),
        (
            "deuteranopia",
            [
                [0.367322, 0.860646, -0.227968],
                [0.280085, 0.672501, 0.047413],
                [-0.011820, 0.042940, 0.968881],
            ],
        ),
        (
            "tritanopia",
            [
                [1.255528, -0.076749, -0.178779],
                [-0.078411, 0.930809, 0.147602],
                [0.004733, 0.691367, 0.303900],
            ],
        ),
    ];

    fn times(matrix: &[[f64; 3]; 3], of: [f64; 3]) -> [f64; 3] {
        matrix.map(|row| row.iter().zip(of).map(|(a, b)| a * b).sum())
    }

    /// Oklab, in which the distance of two colours is how different they are to a reader.
    fn oklab(of: [f64; 3]) -> [f64; 3] {
        let cones = times(
            &[
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ],
            of.map(|value| value.clamp(0.0, 1.0)),
        );
        times(
            &[
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ],
            cones.map(|value| value.max(0.0).cbrt()),
        )
    }

    #[test]
    fn frame_text_has_contrast_on_each_colour() {
        for OwnerColour { class, light, dark } in OWNER_COLOURS {
            assert!(contrast(light, FRAME_TEXT) >= 4.5, "{class}, light: {}", contrast(light, FRAME_TEXT));
            assert!(contrast(dark, FRAME_TEXT) >= 4.5, "{class}, dark: {}", contrast(dark, FRAME_TEXT));
        }
        assert!((contrast("#000000", "#ffffff") - 21.0).abs() < 1e-9);
    }

    #[test]
    fn owner_colours_are_apart_for_colour_blind_readers() {
        /// Twice and more of what is just noticed, which is 0.02.
        const LEAST: f64 = 0.06;
        for (vision, matrix) in VISIONS {
            for side in [|colour: &OwnerColour| colour.light, |colour: &OwnerColour| colour.dark] {
                for (index, one) in OWNER_COLOURS.iter().enumerate() {
                    for other in &OWNER_COLOURS[..index] {
                        let [a, b] = [one, other].map(|colour| oklab(times(&matrix, light(side(colour)))));
                        let distance: f64 =
                            a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
                        assert!(distance > LEAST, "{vision}: {} and {}: {distance}", one.class, other.class);
                    }
                }
            }
        }
    }

    #[test]
    fn each_owner_has_the_colour_of_its_group() {
        let class = |kind, name: &str| {
            let owner = Owner { kind, name: name.into() };
            OWNER_COLOURS[colour_of(&owner, &["Qt", "zlib", "Boost", "Abseil"])].class
        };
        assert_eq!(class(OwnerKind::Mine, ""), "mine");
        assert_eq!(class(OwnerKind::Library, "Qt"), "library-1");
        assert_eq!(class(OwnerKind::Library, "Boost"), "library-3");
        assert_eq!(class(OwnerKind::Library, "Abseil"), "library");
        assert_eq!(class(OwnerKind::Library, "sqlite"), "library");
        assert_eq!(class(OwnerKind::Allocator, "C"), "standard");
        assert_eq!(class(OwnerKind::Runtime, "C"), "standard");
        assert_eq!(class(OwnerKind::Interpreter, "CPython"), "interpreter");
        assert_eq!(class(OwnerKind::Unknown, ""), "unknown");
    }
}
