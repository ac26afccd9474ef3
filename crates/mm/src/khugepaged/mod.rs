//! Huge pages made of small ones: in the background, asked for, or by force.

pub mod asked;
pub mod collapse;
pub mod force;
pub mod scan;
