declare -A seen; all=()
for ((i = 0; i < 8000; i++)); do k=$((i * 7919 % 10007)); seen[$k]+="x$i"; all+=("$k"); done
text=; for ((i = 0; i < 3000; i++)); do text+="${all[i]},"; done
echo "${#seen[@]} ${#text} ${seen[77]}"
for ((i = 0; i < 8; i++)); do n=$(echo "${text:i:50}" | tr , '\n' | sort -n | tail -1); echo "$n"; done
(unset seen; echo "${#all[@]}") & wait
printf '%s\n' "${all[@]}" | sort -u | cksum
