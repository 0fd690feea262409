my %h; $h{($_ * 7919) % 100003} .= "v$_;" for 1 .. 40000;
my $s = join ",", map { "$_=" . length $h{$_} } sort { $a <=> $b } keys %h;
my @parts = split /,/, $s; my %back = map { split /=/ } @parts;
(my $t = $s) =~ s/(\d+)=/<$1>/g;
print scalar(@parts), " ", length($t), " ", unpack("%32C*", $t), "\n";
for my $n (1 .. 3) { my $pid = fork; if (!$pid) { my @x = map { "$_$n" } 1 .. 5000; exit(@x == 5000 ? $n : 0) }
    waitpid $pid, 0; print $? >> 8, "\n" }
my $deep = []; $deep = [$deep, "x" x ($_ % 300)] for 1 .. 5000; print length(join "", map { "$_" } @parts[0 .. 99]), "\n"
