//! The three sides an experiment can run on.

named! {
    /// Where a row of a report comes from.
    pub enum Side {
        /// The workload under `deckle run`, with the pager on real memory.
        Live = "live",
        /// The workload on the host kernel alone.
        Kernel = "kernel",
        /// The workload's accesses on the software machine.
        Model = "model",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::once;
    use clap::Parser;

    #[derive(Parser)]
    struct Options {
        #[arg(long = "on", value_delimiter = ',')]
        sides: Vec<Side>,
    }

    #[test]
    fn r150_sides_are_a_checked_list() {
        let parse = |list| Options::try_parse_from(["lab", "--on", list]).map(|o| o.sides);
        assert_eq!(parse("kernel,live").unwrap(), [Side::Kernel, Side::Live]);
        for bad in ["", "live,", "Live", "all"] {
            assert!(parse(bad).is_err(), "{bad:?} was accepted");
        }
        assert!(once("--on", &parse("live,live").unwrap()).is_err());
    }
}
