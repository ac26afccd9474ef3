//! LLFree's figures from its own benchmark (user space, 4 GiB managed) on a machine like the one
//! this was written on (AMD EPYC, two cores). For the eye only: another run, another day.

use crate::shapes::Shape;

/// Nanoseconds of get and put; for shapes that do both at once, of the pair in the first.
pub fn llfree(shape: Shape, order: u8) -> Option<(f64, Option<f64>)> {
    match (shape, order) {
        (Shape::Bulk, 0) => Some((35.0, Some(28.0))),
        (Shape::Bulk, 9) => Some((49.0, Some(22.0))),
        (Shape::Repeat, 0) => Some((59.0, None)),
        (Shape::Repeat, 9) => Some((44.0, None)),
        _ => None,
    }
}
