# ffmpeg: a test picture, scaled, blurred, coded by a threaded coder and decoded again.
# packages: ffmpeg
# needs: ffmpeg

job() {
    ffmpeg -v error -f lavfi -i testsrc2=size=1280x720:rate=25:duration=4 \
        -vf scale=960:540,gblur -pix_fmt yuv420p -f rawvideo - | sha256sum
    ffmpeg -v error -f lavfi -i testsrc2=size=1280x720:rate=25 -frames:v 50 \
        -c:v libx264 -preset medium -threads 3 -y made.mkv
    ffmpeg -v error -i made.mkv -f rawvideo - | sha256sum
}
