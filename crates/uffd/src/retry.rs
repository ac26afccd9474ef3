//! The one retry loop that fits every caller.

use crate::error::{Done, Partial, Why};

/// Repeats a range operation for what is left until the range is done or something other than
/// `EAGAIN` stops it.
///
/// `step(offset, len)` does the operation on `len` bytes from `offset` of the range. After
/// progress the rest is tried at once. When a step was refused because the address space is
/// changing, `pace()` decides: it should see to it that the events get read (by reading them, or
/// by waiting for whoever does), and returns false to give up. Without that the refusal would
/// repeat for ever, which is why the waiting is not done here.
///
/// # Errors
/// What stopped the loop, with the bytes done in all steps together. `Again` only if `pace` gave
/// up.
pub fn finish(
    len: usize,
    mut step: impl FnMut(usize, usize) -> Result<Done, Partial>,
    mut pace: impl FnMut() -> bool,
) -> Result<Done, Partial> {
    let mut done = 0;
    loop {
        match step(done, len - done) {
            Ok(_) => return Ok(Done { bytes: len }),
            Err(Partial { done: more, why }) => {
                done += more.min(len - done);
                match why {
                    Why::Again { .. } if more > 0 && done < len => {}
                    Why::Again { .. } if done < len && pace() => {}
                    why => return Err(Partial { done, why }),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p9_the_loop_goes_on_at_the_rest_and_asks_before_it_spins() {
        let mut answers = vec![
            Ok(Done { bytes: 8192 }),
            Err(Partial {
                done: 0,
                why: Why::Again { changing: true },
            }),
            Err(Partial {
                done: 4096,
                why: Why::Again { changing: false },
            }),
        ];
        let mut asked = Vec::new();
        let mut paced = 0;
        let result = finish(
            12288,
            |at, len| {
                asked.push((at, len));
                answers.pop().expect("no step after the last answer")
            },
            || {
                paced += 1;
                true
            },
        );
        assert_eq!(result, Ok(Done { bytes: 12288 }));
        assert_eq!(asked, [(0, 12288), (4096, 8192), (4096, 8192)]);
        assert_eq!(paced, 1);
    }

    #[test]
    fn p9_the_loop_reports_all_progress_when_it_stops() {
        let mut answers = vec![
            Err(Partial {
                done: 0,
                why: Why::Exists,
            }),
            Err(Partial {
                done: 4096,
                why: Why::Again { changing: false },
            }),
        ];
        let result = finish(8192, |_, _| answers.pop().expect("two steps"), || false);
        assert_eq!(
            result,
            Err(Partial {
                done: 4096,
                why: Why::Exists
            })
        );

        let again = Partial {
            done: 0,
            why: Why::Again { changing: true },
        };
        assert_eq!(finish(4096, |_, _| Err(again), || false), Err(again));
    }
}
