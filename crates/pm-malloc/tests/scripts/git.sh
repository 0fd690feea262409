set -e; git init -q -b main repository; cd repository
for n in 1 2 3; do
    for i in $(seq 150); do seq $((i * n)) $((i * n + 200)) > "file$i"; done
    git add .; git commit -q -m "commit $n"
done
git checkout -q -b side HEAD~1; echo side > side; git add side; git commit -q -m side
git checkout -q main; git merge -q -m merge side
git repack -q -a -d --window=20; git fsck --no-progress --full
git log --stat --format='%H %T %s'; git diff HEAD~2 | cksum; git blame file7 | cksum; git count-objects
