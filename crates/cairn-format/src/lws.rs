//! Placeholder until the format lands.
